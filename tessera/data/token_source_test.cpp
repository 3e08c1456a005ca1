#include "tessera/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "tessera/data/testing.h"
#include "tessera/data/text_files.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using ::tessera::data::testing::bytes_of;
using ::tessera::data::testing::llmc_header;
using ::tessera::data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text_of(const TokenSource& source) {
  std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

std::string opening(const TokenSourceOptions& options) {
  return refusal([&] { TokenSource::open(options); });
}

TEST(TokenSource, ReadsTheFixture) {
  auto source = TokenSource::open({.paths = {"tests/fixtures/tokens_head.bin"}});
  EXPECT_EQ(source.size(), 32768);
  EXPECT_NO_THROW(source.check_vocabulary(256));
}

TEST(TokenSource, AnyRangeAcrossFilesEqualsTheWhole) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.bin", bytes_of<uint16_t>({0, 1, 2}));
  const auto b = folder.write("b.bin", llmc_header(20240801, 7, 1) + bytes_of<uint32_t>({3}));
  const auto c = folder.write("c.bin", bytes_of<uint16_t>({4, 5, 6, 7}));
  const auto source = TokenSource::open({.paths = {a, b, c}});
  ASSERT_EQ(source.size(), 8);
  for (int64_t begin = 0; begin <= 8; ++begin) {
    for (int64_t end = begin; end <= 8; ++end) {
      std::vector<int64_t> tokens(static_cast<size_t>(end - begin)), expected(tokens.size());
      std::iota(expected.begin(), expected.end(), begin);
      source.read(begin, tokens);
      EXPECT_EQ(tokens, expected) << begin << " " << end;
    }
  }
  std::vector<int64_t> two(2);
  EXPECT_THROW(source.read(7, two), std::out_of_range);
  EXPECT_THROW(source.read(-1, two), std::out_of_range);
}

TEST(TokenSource, OneTextFileIsItsBytes) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.txt", "na\xC3\xAFve");
  EXPECT_EQ(text_of(TokenSource::open({.paths = {path}})), "na\xC3\xAFve");
}

TEST(TokenSource, AFolderIsItsTextsInTheOrderOfTheirPaths) {
  const TemporaryFolder folder;
  folder.write("b.h", "B");
  folder.write("a/z.h", "AZ");
  folder.write("a.h", "A");
  folder.write("a/deep/er/x.cpp", "X");
  folder.write("empty.h", "");
  folder.write(".hidden.h", "no");
  folder.write(".git/c.h", "no");
  const std::vector<std::string> paths{folder.path()};
  const std::string null(1, '\0');
  // '.' sorts before '/'.
  EXPECT_EQ(text_of(TokenSource::open({.paths = paths})),
            "A" + null + "X" + null + "AZ" + null + "B");
  EXPECT_EQ(text_of(TokenSource::open({.paths = paths, .extensions = {"cpp"}})), "X");
  EXPECT_EQ(text_of(TokenSource::open({.paths = paths, .extensions = {".cpp", ".h"}})),
            "A" + null + "X" + null + "AZ" + null + "B");
}

TEST(TokenSource, FollowsNoLinkOutOfTheFolder) {
  const TemporaryFolder folder, elsewhere;
  elsewhere.write("secret.h", "secret");
  folder.write("a.h", "A");
  fs::create_symlink(elsewhere.path() / "secret.h", folder.path() / "out.h");
  fs::create_directory_symlink(elsewhere.path(), folder.path() / "folder");
  fs::create_directory_symlink(folder.path(), folder.path() / "loop");
  fs::create_symlink("nowhere", folder.path() / "dangling.h");
  fs::create_symlink("a.h", folder.path() / "b.h");
  EXPECT_EQ(text_of(TokenSource::open({.paths = {folder.path()}})), std::string("A\0A", 3));
}

TEST(TokenSource, MapsLargeTextsInTheirPlace) {
  const TemporaryFolder folder;
  const std::string large((1 << 20) + 3, 'L');
  folder.write("a.txt", "a");
  folder.write("b.txt", large);
  folder.write("c.txt", "c");
  const std::string null(1, '\0');
  EXPECT_EQ(text_of(TokenSource::open({.paths = {folder.path()}})),
            "a" + null + large + null + "c");
}

TEST(TokenSource, AFolderOfTokenFilesIsTokens) {
  const TemporaryFolder folder;
  folder.write("shard_1.bin", bytes_of<uint16_t>({2, 3}));
  folder.write("shard_0.bin", bytes_of<uint16_t>({0, 1}));
  const auto source = TokenSource::open({.paths = {folder.path()}});
  std::vector<int64_t> tokens(4);
  source.read(0, tokens);
  EXPECT_THAT(tokens, ElementsAre(0, 1, 2, 3));
  folder.write("README", "about the shards");
  EXPECT_EQ(TokenSource::open({.paths = {folder.path()}, .format = DataFormat::tokens}).size(), 4);
}

TEST(TokenSource, RefusesWhatItCannotRead) {
  const TemporaryFolder folder;
  const auto binary = folder.write("x.dat", std::string("\x89PNG\0\1", 6));
  const auto empty = folder.write("e.txt", "");
  const auto text = folder.write("t.txt", "text");
  const auto no_file = (folder.path() / "none").string();
  EXPECT_THAT(opening({}), HasSubstr("expected at least one file or folder"));
  EXPECT_THAT(opening({.paths = {no_file}}), HasSubstr("none: no such file or folder"));
  EXPECT_THAT(opening({.paths = {binary}}), HasSubstr("x.dat: unknown format"));
  EXPECT_THAT(opening({.paths = {binary}, .format = DataFormat::text}),
              HasSubstr("x.dat: expected text, got zero bytes"));
  EXPECT_THAT(opening({.paths = {empty}}),
              HasSubstr("e.txt: expected text, got nothing but empty files"));
  EXPECT_THAT(opening({.paths = {folder.path()}, .extensions = {".py", ".rs"}}),
              HasSubstr("expected files that end in .py or .rs, got none"));
  EXPECT_THAT(opening({.paths = {text}, .token_dtype = TokenDtype::uint16}),
              HasSubstr("token_dtype has no effect"));
  EXPECT_THAT(opening({.paths = {"/dev/null"}}), HasSubstr("/dev/null: expected a regular file"));
}

TEST(Vocabulary, NamesFileOffsetAndToken) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.bin", bytes_of<uint16_t>({1, 2}));
  std::vector<int64_t> long_run(20000, 99);
  long_run[19998] = 100;
  const auto b =
      folder.write("b.bin", llmc_header(20240520, 1, 20000) + bytes_of<uint16_t>(long_run));
  auto source = TokenSource::open({.paths = {a, b}});
  EXPECT_EQ(refusal([&] { source.check_vocabulary(101); }), "(accepted)");
  EXPECT_EQ(refusal([&] { source.check_vocabulary(100); }),
            b + ": token 100 at byte offset 41020 is beyond the vocabulary: expected 0 to 99; set "
                "vocab_size");
}

TEST(Vocabulary, IsCheckedAtEveryReadBeyondTheScan) {
  const TemporaryFolder folder;
  const auto a = folder.write("a.bin", bytes_of<uint16_t>({1, 2, 3, 400}));
  auto source = TokenSource::open({.paths = {a}});
  ASSERT_EQ(refusal([&] { source.check_vocabulary(100, 6); }), "(accepted)");
  std::vector<int64_t> tokens(2);
  EXPECT_NO_THROW(source.read(1, tokens));
  EXPECT_THAT(refusal([&] { source.read(2, tokens); }),
              AllOf(HasSubstr("token 400 at byte offset 6")));
}

TEST(Vocabulary, RefusesNegativeTokens) {
  const TemporaryFolder folder;
  folder.write("m.idx", std::string("MMIDIDX\0\0", 9) + bytes_of<int64_t>({1}) +
                            bytes_of<uint8_t>({4}) + bytes_of<int64_t>({1, 2}) +
                            bytes_of<int32_t>({3}) + bytes_of<int64_t>({0, 0, 1}));
  folder.write("m.bin", bytes_of<int32_t>({5, 6, -7}));
  auto source = TokenSource::open({.paths = {folder.path() / "m"}});
  EXPECT_THAT(refusal([&] { source.check_vocabulary(100); }),
              HasSubstr("m.bin: token -7 at byte offset 8"));
}

}  // namespace
}  // namespace tessera::data
