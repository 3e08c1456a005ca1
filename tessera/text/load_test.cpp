#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/text/tokenizer_parts.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tessera::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

/// A tokenizer.json of few tokens: bytes of GPT-2's letters, and two merges.
json small() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
    "added_tokens": [{"id": 8, "content": "<end>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "Ã": 5, "¤": 6, "abab": 7},
              "merges": ["a b", ["Ġ", "ab"], "ab ab"]}})");
}

Tokenizer parsed(const json& file) { return parse_tokenizer_json("t.json", file.dump()); }
std::string refusal(const json& file) {
  return message_of([&] { parsed(file); });
}

TEST(TokenizerJson, MergesByRankFromLeftToRight) {
  const auto tokenizer = parsed(small());
  EXPECT_THAT(tokenizer.encode("ab ababb").ids, ElementsAre(2, 4, 2, 1));
  EXPECT_THAT(tokenizer.encode("a<end>b").ids, ElementsAre(0, 8, 1));
  EXPECT_THAT(tokenizer.encode("ab\xC3\xA4").ids, ElementsAre(2, 5, 6));
  EXPECT_EQ(tokenizer.num_ids(), 9);
}

TEST(TokenizerJson, SpecialTokensOfATextStayTextIfAskedTo) {
  auto file = small();
  file["model"]["vocab"]["<"] = 9;
  const auto tokenizer = parsed(file);
  EXPECT_THAT(tokenizer.encode("<end>", {.find_special_tokens = false}).ids, ElementsAre(9));
}

TEST(TokenizerJson, ManySymbolsMergeAsFewDo) {
  const auto tokenizer = parsed(small());
  std::string text;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    text += "abab";
    expected.push_back(7);
  }
  EXPECT_EQ(tokenizer.encode(text + "b").ids.size(), expected.size() + 1);
  EXPECT_EQ(tokenizer.encode(text).ids, expected);
}

TEST(TokenizerJson, AStreamShowsNoHalfCharacter) {
  const auto tokenizer = parsed(small());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(0), "a");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.push(6), "\xC3\xA4");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.push(1),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

/// Where the pieces that a Split by the expression leaves end, in characters.
std::vector<size_t> ends_of_pieces(const std::string& expression, const std::string& text) {
  auto file = small();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}};
  file["decoder"] = nullptr;
  file["model"] = {{"type", "WordLevel"}, {"vocab", {{"?", 0}}}, {"unk_token", "?"}};
  file["added_tokens"] = json::array();
  std::vector<size_t> ends;
  for (const auto& piece : parsed(file).encode(text).offsets) ends.push_back(piece.end);
  return ends;
}

// As the `tokenizers` package, 0.23.3, cuts them.
TEST(TokenizerJson, ClassesAreOnigurumas) {
  EXPECT_THAT(ends_of_pieces("\\w+", "a\u00b2b"), ElementsAre(3));
  EXPECT_THAT(ends_of_pieces("\\w+", "x\u00b9\u00bd\u2167\u2460"), ElementsAre(4, 5));
  EXPECT_THAT(ends_of_pieces("\\w+", "\u0915\u094d\u200d\u0937"), ElementsAre(2, 3, 4));
  EXPECT_THAT(ends_of_pieces("[\\w]+", "a\u00b2b"), ElementsAre(1, 2, 3));
  EXPECT_THAT(ends_of_pieces("[[:punct:]]", "a\u2581b\u20acc"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(ends_of_pieces("[[:^punct:]]+", "a\u20acb"), ElementsAre(1, 2, 3));
  EXPECT_THAT(ends_of_pieces("[^[:^punct:]x]", "a\u20acx"), ElementsAre(1, 2, 3));
  EXPECT_THAT(ends_of_pieces("[[:alpha:]]+", "\u24b6\u2160\u3007\u00b2"), ElementsAre(3, 4));
}

TEST(TokenizerJson, WhatIsNotKnownIsNamed) {
  auto file = small();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Rot13"}}}}};
  EXPECT_THAT(refusal(file),
              HasSubstr("t.json.normalizer.normalizers[0].type: expected a normalizer "
                        "that is known here (NFC,"));
  EXPECT_THAT(refusal(file), HasSubstr("got \"Rot13\""));
  file = small();
  file["pre_tokenizer"]["type"] = "Bytes";
  EXPECT_THAT(refusal(file), HasSubstr("t.json.pre_tokenizer.type: expected a pre-tokenizer"));
  file = small();
  file["decoder"]["new_key"] = 1;
  EXPECT_THAT(refusal(file), HasSubstr("t.json.decoder: the key \"new_key\" is not known here"));
  file = small();
  file["model"]["dropout"] = 0.1;
  EXPECT_THAT(refusal(file), HasSubstr("t.json.model.dropout: expected no dropout, got 0.1"));
  file = small();
  file["model"]["merges"].push_back("a c");
  EXPECT_THAT(
      refusal(file),
      HasSubstr("t.json.model.merges[3]: expected two tokens of the vocabulary, got \"a c\""));
  file = small();
  file["added_tokens"][0]["content"] = "ab";
  EXPECT_THAT(refusal(file), HasSubstr("t.json.added_tokens[0].id: expected 2, which it has in the "
                                       "vocabulary, got 8"));
  file = small();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(refusal(file), HasSubstr("pattern.Regex: expected a regular expression, got (a: "));
  file["pre_tokenizer"]["pattern"]["Regex"] = "(\na";
  EXPECT_THAT(refusal(file), HasSubstr("got (\\x0aa: "));
  EXPECT_THAT(message_of([] { parse_tokenizer_json("t.json", "{\"model\": "); }),
              HasSubstr("t.json: expected JSON in UTF-8"));
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("tessera_text_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const {
    write_file(path_ / name, text);
  }

 private:
  fs::path path_;
};

TEST(LoadTokenizer, ReadsTiktokensRanks) {
  const Folder folder;
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (size_t byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{}{}== {}\n", kLetters[byte >> 2], kLetters[(byte & 3) << 4], byte);
  folder.write("tokenizer.model", ranks + "YWI= 256\nY2Fi 257\n");  // ab cab
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_THAT(tokenizer.encode("abcab").ids, ElementsAre(258, 256, 257));
  EXPECT_THAT(tokenizer.encode("cab").ids, ElementsAre(258, 257));
  EXPECT_EQ(tokenizer.token_of(258), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer.decode(Ids{256, 99}), "abc");
  const auto refused = [&](std::string_view text) {
    folder.write("tokenizer.model", text);
    return message_of([&] { load_tokenizer(folder.path()); });
  };
  EXPECT_THAT(refused("YQ== 0\nYg== 2\n"), HasSubstr("with gaps"));
  EXPECT_THAT(refused("YQ== 0\nYg== 1\n"), HasSubstr("each of the 256 bytes to be a token, got 2"));
  EXPECT_THAT(refused("tet 0\n"), HasSubstr("tokenizer.model: "));
}

TEST(LoadTokenizer, SaysWhatIsMissing) {
  const Folder folder;
  EXPECT_THAT(message_of([&] { load_tokenizer(folder.path()); }),
              HasSubstr("expected a tokenizer in this folder, got neither tokenizer.json"));
  folder.write("tokenizer.model", std::string("\x0a\xff\xff", 3));
  EXPECT_THAT(message_of([&] { load_tokenizer(folder.path()); }),
              HasSubstr("expected a SentencePiece model, got something else, or half of one"));
}

/// Old files beside a tokenizer.json give the same ids.
TEST(LoadTokenizer, OldFilesGiveTheSameIds) {
  const fs::path fixtures = "tests/fixtures/tokenizers";
  for (const auto& [folder, old] :
       {std::pair("gpt2_style", "vocab.json"), std::pair("wordpiece_bert", "vocab.txt")}) {
    const auto now = load_tokenizer(fixtures / folder),
               then = load_tokenizer(fixtures / folder / old);
    std::ifstream file(fixtures / folder / "expected.jsonl");
    int cases = 0;
    for (std::string line; std::getline(file, line); ++cases) {
      const auto text = json::parse(line)["text"].get<std::string>();
      const auto encoding = then.encode(text);
      EXPECT_EQ(encoding.ids, now.encode(text).ids) << line;
      EXPECT_EQ(then.decode(encoding.ids), now.decode(encoding.ids)) << line;
    }
    EXPECT_GT(cases, 100);
  }
}

TEST(LoadTokenizer, KnowsWhatEndsAText) {
  const Folder folder;
  folder.write("tokenizer.json", small().dump());
  EXPECT_EQ(load_tokenizer(folder.path()).end_of_text(), std::nullopt);
  folder.write("special_tokens_map.json", R"({"eos_token": "b"})");
  EXPECT_EQ(load_tokenizer(folder.path()).end_of_text(), 1);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<end>", "lstrip": false}})");
  EXPECT_EQ(load_tokenizer(folder.path()).end_of_text(), 8);
  EXPECT_EQ(tokenizer_files(folder.path()).size(), 3);
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THAT(message_of([&] { load_tokenizer(folder.path()); }),
              HasSubstr("tokenizer_config.json.eos_token: expected a token of tokenizer.json, got "
                        "\"</s>\""));
  const fs::path fixtures = "tests/fixtures/tokenizers";
  EXPECT_EQ(load_tokenizer(fixtures / "sentencepiece_bpe").end_of_text(), 2);
  const auto gpt2 = load_tokenizer(fixtures / "gpt2_style" / "vocab.json");
  EXPECT_EQ(gpt2.end_of_text(), gpt2.id_of("<|endoftext|>"));
}

TEST(LoadTokenizer, OldFilesStandForNoMoreThanTheyCan) {
  const Folder folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "\u0120": 3})");
  folder.write("merges.txt", "#version: 0.2\na b\n");
  EXPECT_THAT(load_tokenizer(folder.path()).encode("ab<x>ab").ids, ElementsAre(2, 2));
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
                   "7": {"content": "<x>", "special": true, "normalized": false}}})");
  EXPECT_THAT(load_tokenizer(folder.path()).encode("ab<x>ab").ids, ElementsAre(2, 7, 2));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  EXPECT_THAT(message_of([&] { load_tokenizer(folder.path()); }),
              HasSubstr("tokenizer_config.json.tokenizer_class: expected GPT2Tokenizer or "
                        "Qwen2Tokenizer (others only from a tokenizer.json), got "
                        "\"RobertaTokenizer\""));
  folder.write("tokenizer_config.json", R"({"add_prefix_space": true})");
  EXPECT_THAT(message_of([&] { load_tokenizer(folder.path()); }),
              HasSubstr("tokenizer_config.json.add_prefix_space: expected false"));
}

TEST(LoadTokenizer, PairsOfTexts) {
  const fs::path folder = "tests/fixtures/tokenizers/wordpiece_bert";
  const auto tokenizer = load_tokenizer(folder);
  std::ifstream file(folder / "pairs.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const auto each = json::parse(line);
    const auto encoding =
        tokenizer.encode_pair(each["text"].get<std::string>(), each["pair"].get<std::string>(),
                              {.add_special_tokens = each["add_special_tokens"]});
    EXPECT_EQ(json(encoding.ids), each["ids"]) << line;
    EXPECT_EQ(json(encoding.type_ids), each["type_ids"]) << line;
    json offsets = json::array();
    for (const auto& one : encoding.offsets) offsets.push_back({one.begin, one.end});
    EXPECT_EQ(offsets, each["offsets"]) << line;
  }
  EXPECT_GT(cases, 10);
}

TEST(Unicode, BrokenTextCountsAsReplacementCharacters) {
  const auto tokenizer = parsed(small());
  EXPECT_EQ(tokenizer
                .encode("a\xFF\xC3"
                        "b")
                .offsets.size(),
            tokenizer
                .encode("a\xEF\xBF\xBD\xEF\xBF\xBD"
                        "b")
                .offsets.size());
}

}  // namespace
}  // namespace tessera::text
