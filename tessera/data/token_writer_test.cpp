#include "tessera/data/token_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/testing.h"
#include "tessera/data/token_source.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::refusal;
using ::tessera::data::testing::tokens_of;
using tessera::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<uint32_t>;

TEST(TokenWriter, WritesWhatIsReadBack) {
  const TemporaryFolder folder;
  for (const auto type : {TokenType::uint16, TokenType::uint32}) {
    for (const auto header : {TokenHeader::none, TokenHeader::llmc}) {
      const auto path = folder.path() / "out.bin";
      TokenWriter writer(path, {.type = type, .header = header});
      writer.append(Tokens{0, 255});
      writer.append(Tokens{1, 65535, 9});
      writer.commit();
      const auto dtype = type == TokenType::uint16 ? TokenDtype::uint16 : TokenDtype::uint32;
      EXPECT_THAT(tokens_of({.paths = {path}, .token_dtype = dtype}),
                  ElementsAre(0, 255, 1, 65535, 9));
      const auto header_bytes = header == TokenHeader::llmc ? 1024 : 0;
      EXPECT_EQ(std::filesystem::file_size(path),
                static_cast<uint64_t>(header_bytes + 5 * token_bytes(type)));
      EXPECT_FALSE(std::filesystem::exists(partial_name(path)));
    }
  }
}

TEST(TokenWriter, WritesMegatronsTwoFiles) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out.bin";
  for (const auto type : {TokenType::uint16, TokenType::int32}) {
    TokenWriter writer(path, {.type = type, .header = TokenHeader::megatron});
    writer.append(Tokens{5, 6, 7});
    writer.end_document();
    writer.append(Tokens{8});
    writer.end_document();
    writer.commit();
    const auto file = open_megatron(path);
    EXPECT_EQ(file.type, type);
    EXPECT_EQ(file.num_tokens, 4);
    // magic, version, code, 2 sequences, 3 entries, 2 sizes, 2 pointers, 3 entries
    EXPECT_EQ(std::filesystem::file_size(folder.path() / "out.idx"),
              9U + 8 + 1 + 8 + 8 + 2 * 4 + 2 * 8 + 3 * 8);
    EXPECT_THAT(tokens_of({.paths = {path}}), ElementsAre(5, 6, 7, 8));
  }
}

TEST(TokenWriter, GoesOnWhereAnotherWasInterrupted) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out.bin";
  for (const auto header : {TokenHeader::none, TokenHeader::llmc}) {
    WrittenTokens done;
    {
      TokenWriter first(path, {.header = header});
      first.append(Tokens{1, 2, 3});
      done = first.flush();
      first.append(Tokens{4, 5, 6, 7});  // is lost
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    TokenWriter second(path, {.header = header}, done);
    EXPECT_THAT(refusal([&] { TokenWriter(path, {.header = header}, done); }),
                HasSubstr("is written by another process"));
    second.append(Tokens{9});
    second.commit();
    EXPECT_THAT(tokens_of({.paths = {path}}), ElementsAre(1, 2, 3, 9));
    std::filesystem::remove(path);
  }
}

TEST(TokenWriter, Refuses) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out.bin";
  EXPECT_THAT(refusal([&] {
                TokenWriter writer(path, {});
                writer.append(Tokens{1, 65536});
              }),
              HasSubstr("expected tokens from 0 to 65535 in uint16, got 65536"));
  EXPECT_THAT(refusal([&] { TokenWriter(path, {}, WrittenTokens{.num_tokens = 5}); }),
              HasSubstr("expected 10 bytes or more to go on with, got 0"));
  folder.write("out.bin.partial", "somebody's");
  EXPECT_THAT(refusal([&] { TokenWriter(path, {}); }), HasSubstr("nothing says what it is"));
  EXPECT_EQ(std::filesystem::file_size(partial_name(path)), 10U);
  std::filesystem::remove(partial_name(path));
  const auto others = folder.write("others", "somebody's");
  std::filesystem::create_symlink(others, partial_name(path));
  EXPECT_THAT(refusal([&] { TokenWriter(path, {}); }), HasSubstr("got a link"));
  EXPECT_THAT(
      refusal([&] { TokenWriter(folder.path() / "out", {.header = TokenHeader::megatron}); }),
      HasSubstr("expected a name that ends in .bin"));
  folder.write("old.idx", "index");
  EXPECT_THAT(refusal([&] { TokenWriter(folder.path() / "old.bin", {}); }),
              HasSubstr("old.idx: stands beside"));
}

TEST(TokenWriter, LlmcsHeaderHasALimit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out.bin";
  // A sparse file stands for what was written before.
  folder.write("out.bin.partial", "");
  const int64_t most = (int64_t{1} << 31) - 1;
  std::filesystem::resize_file(partial_name(path), static_cast<uintmax_t>(1024 + 2 * most));
  TokenWriter writer(path, {.header = TokenHeader::llmc}, WrittenTokens{.num_tokens = most - 1});
  writer.append(Tokens{1});
  EXPECT_THAT(refusal([&] { writer.append(Tokens{1}); }),
              HasSubstr("an llm.c header counts at most 2147483647 tokens"));
}

}  // namespace
}  // namespace tessera::data
