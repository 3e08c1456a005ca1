#include "tessera/data/tokenize.h"

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
using ::testing::HasSubstr;

TEST(Tokenize, WritesTheSequenceThatTextIsReadAs) {
  const TemporaryFolder folder, out;
  folder.write("b/b.h", "second\xFF");
  folder.write("a.h", std::string((1 << 20) + 5, 'a'));
  folder.write("empty.h", "");
  folder.write("c.py", "left out");
  const auto extra = folder.write("extra.txt", "last");
  const std::vector<std::string> inputs{folder.path(), extra};
  const auto expected =
      tokens_of({.paths = inputs, .format = DataFormat::text, .extensions = {".h"}});
  for (const auto header : {TokenHeader::none, TokenHeader::llmc}) {
    const auto file = out.path() / "t.bin";
    const auto result =
        tokenize_bytes({.inputs = inputs, .out = file, .header = header, .extensions = {".h"}});
    EXPECT_EQ(result.num_files, 3);
    EXPECT_EQ(result.num_tokens, (1 << 20) + 5 + 1 + 7 + 1 + 4);
    EXPECT_EQ(tokens_of({.paths = {file}}), expected);
  }
}

TEST(Tokenize, RefusesInOneLineAndLeavesNothing) {
  const TemporaryFolder folder, out;
  const auto text = folder.write("a.txt", "text");
  const auto empty = folder.write("e.txt", "");
  const auto file = out.path() / "t.bin";
  const auto line = [](const TokenizeOptions& options) {
    return refusal([&] { tokenize_bytes(options); });
  };
  EXPECT_THAT(line({.inputs = {"no/such/file"}, .out = file}),
              HasSubstr("no/such/file: no such file or folder"));
  EXPECT_THAT(line({.inputs = {empty}, .out = file}), HasSubstr("nothing but empty files"));
  EXPECT_THAT(line({.inputs = {folder.path()}, .out = text}),
              HasSubstr("a.txt: is itself one of the inputs"));
  EXPECT_THAT(line({.inputs = {text}, .out = out.path() / "no" / "t.bin"}),
              HasSubstr("its folder does not exist"));
  EXPECT_THAT(line({.inputs = {text}, .out = out.path()}),
              HasSubstr("expected a file to write, got a folder"));
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

}  // namespace
}  // namespace tessera::data
