#include "tessera/data/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tessera/data/token_source.h"
#include "tessera/text/tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::refusal;
using ::tessera::data::testing::tokens_of;
using tessera::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kGpt2 = "tests/fixtures/tokenizers/gpt2_style";
const char* const kLlama3 = "tests/fixtures/tokenizers/llama3_style";
const char* const kSentencePiece = "tests/fixtures/tokenizers/sentencepiece_bpe";
const char* const kBert = "tests/fixtures/tokenizers/wordpiece_bert";

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
        tokenize({.inputs = inputs, .out = file, .header = header, .extensions = {".h"}});
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
    return refusal([&] { tokenize(options); });
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
  EXPECT_THAT(line({.inputs = {text}, .out = file, .end_of_text = "</s>"}),
              HasSubstr("--end-of-text: needs --tokenizer"));
  EXPECT_THAT(line({.inputs = {text}, .out = file, .tokenizer = "no/model"}),
              HasSubstr("no/model: no such file or folder"));
  EXPECT_THAT(
      line({.inputs = {text}, .out = file, .tokenizer = kGpt2, .end_of_text = "<|nothing|>"}),
      HasSubstr("expected none or a token of tests/fixtures/tokenizers/gpt2_style, got "
                "'<|nothing|>'"));
  EXPECT_THAT(line({.inputs = {text}, .out = file, .tokenizer = kBert}),
              HasSubstr("says nothing of an eos_token"));
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
}

/// A text in many scripts, special tokens among its words.
std::string hard_text(int seed) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "Line " + std::to_string(i * seed) + " d'\xC3\xA9t\xC3\xA9 <|endoftext|>, ";
    text += "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80  x_" + std::to_string(i) + "\n";
    if (i % 7 == seed % 7) text += "\n    \xFF indented;\r\n";
  }
  return text;
}

std::vector<int64_t> expected_tokens(const std::string& tokenizer,
                                     const std::vector<std::string>& texts) {
  const auto loaded = text::load_tokenizer(tokenizer);
  std::vector<int64_t> tokens;
  for (const auto& text : texts) {
    const auto ids =
        loaded.encode(text, {.add_special_tokens = false, .find_special_tokens = false}).ids;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    tokens.push_back(*loaded.end_of_text());
  }
  return tokens;
}

TEST(Tokenize, WritesATokenizersTokens) {
  const TemporaryFolder folder, out;
  const std::vector<std::string> texts{hard_text(1), hard_text(2)};
  const std::vector<std::string> inputs{folder.write("a", texts[0]), folder.write("b", texts[1])};
  for (const std::string tokenizer : {kGpt2, kLlama3, kSentencePiece}) {
    const auto expected = expected_tokens(tokenizer, texts);
    for (const auto header : {TokenHeader::none, TokenHeader::llmc, TokenHeader::megatron}) {
      const auto file = out.path() / (header == TokenHeader::megatron ? "m.bin" : "t.bin");
      const auto result = tokenize({.inputs = inputs,
                                    .out = file,
                                    .tokenizer = tokenizer,
                                    .header = header,
                                    .num_threads = 3,
                                    .part_bytes = 2000});
      EXPECT_EQ(result.num_tokens, static_cast<int64_t>(expected.size()));
      EXPECT_EQ(tokens_of({.paths = {file}}), expected);
    }
  }
}

TEST(Tokenize, WritesUint32WhereUint16DoesNotHoldTheIds) {
  const TemporaryFolder folder, out;
  const auto text = folder.write("a.txt", "ab<far>");
  const auto tokenizer = folder.write("tokenizer.json", R"({
    "added_tokens": [{"id": 70000, "content": "<far>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": false}],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})");
  TokenizeOptions options{
      .inputs = {text}, .out = out.path() / "t.bin", .tokenizer = tokenizer, .end_of_text = "none"};
  EXPECT_EQ(tokenize(options).type, TokenType::uint32);
  EXPECT_THAT(tokens_of({.paths = {options.out}, .token_dtype = TokenDtype::uint32}),
              ElementsAre(0, 1, 70000));
  options.dtype = TokenDtype::uint16;
  EXPECT_THAT(refusal([&] { tokenize(options); }),
              HasSubstr("--dtype uint16: expected a type that holds the 70001 ids of"));
  options = {.inputs = {text},
             .out = out.path() / "m.bin",
             .tokenizer = tokenizer,
             .end_of_text = "<far>",
             .header = TokenHeader::megatron};
  EXPECT_EQ(tokenize(options).type, TokenType::int32);
  EXPECT_THAT(tokens_of({.paths = {options.out}}), ElementsAre(0, 1, 70000, 70000));
}

struct Interrupted {};

TEST(Tokenize, GoesOnAfterAnInterruption) {
  const TemporaryFolder folder, out;
  std::vector<std::string> inputs;
  for (int i = 1; i < 5; ++i) inputs.push_back(folder.write(std::to_string(i), hard_text(i)));
  for (const auto& tokenizer : {std::string(), std::string(kGpt2)}) {
    TokenizeOptions options{.inputs = inputs,
                            .out = out.path() / "whole.bin",
                            .tokenizer = tokenizer,
                            .header = TokenHeader::megatron,
                            .num_threads = 2,
                            .part_bytes = 1000,
                            .bytes_between_saves = 5000};
    tokenize(options);
    const auto expected = tokens_of({.paths = {options.out}});
    options.out = out.path() / "parts.bin";
    int calls = 0;
    int64_t earlier = 0;
    const auto in_pieces = [&] {  // each call does 12 parts more than what was saved
      int parts = 0;
      options.on_progress = [&](int64_t earlier_bytes, int64_t, int64_t) {
        earlier = earlier_bytes;
        if (++parts > 12) throw Interrupted();
      };
      ++calls;
      tokenize(options);
    };
    for (bool done = false; !done;) {
      try {
        in_pieces();
        done = true;
      } catch (const Interrupted&) {
        ASSERT_LT(calls, 100);
        ASSERT_FALSE(std::filesystem::exists(options.out));
      }
    }
    EXPECT_GT(calls, 5);
    EXPECT_GT(earlier, 0);
    EXPECT_EQ(tokens_of({.paths = {options.out}}), expected);
    EXPECT_EQ(read_file(out.path() / "parts.idx"), read_file(out.path() / "whole.idx"));
    EXPECT_FALSE(std::filesystem::exists(out.path() / "parts.bin.partial.json"));
    std::filesystem::remove(options.out);
    std::filesystem::remove(out.path() / "parts.idx");
  }
}

TEST(Tokenize, DoesNotGoOnWithOtherSettings) {
  const TemporaryFolder folder, out;
  TokenizeOptions options{.inputs = {folder.write("a", hard_text(1))},
                          .out = out.path() / "t.bin",
                          .tokenizer = kGpt2,
                          .on_progress = [](int64_t, int64_t, int64_t) { throw Interrupted(); }};
  EXPECT_THROW(tokenize(options), Interrupted);
  options.on_progress = {};
  auto other = options;
  other.tokenizer = kLlama3;
  EXPECT_THAT(
      refusal([&] { tokenize(other); }),
      ::testing::MatchesRegex(".*t.bin.partial.json: the interrupted run had other settings: "
                              "tokenizer [0-9a-f]+, now [0-9a-f]+; remove it and .* to "
                              "begin anew"));
  other = options;
  other.header = TokenHeader::llmc;
  EXPECT_THAT(refusal([&] { tokenize(other); }), HasSubstr("header none, now llmc"));
  other = options;
  other.inputs.push_back(folder.write("b", "more"));
  EXPECT_THAT(refusal([&] { tokenize(other); }), HasSubstr("inputs 1 files, "));
  folder.write("../" + out.path().filename().string() + "/t.bin.partial.json", "{\"settings\": 3}");
  EXPECT_THAT(refusal([&] { tokenize(options); }),
              HasSubstr("expected the settings of an interrupted run, got no inputs"));
}

}  // namespace
}  // namespace tessera::data
