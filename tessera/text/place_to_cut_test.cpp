#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/text/tokenizer_parts.h"

namespace tessera::text {
namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

/// All texts of a tokenizer's fixtures, some thousand lines in many scripts, `between` them.
std::string hard_text(const std::string& folder, std::string_view between) {
  std::ifstream file(folder + "/expected.jsonl");
  std::string all;
  for (std::string line; std::getline(file, line);) {
    all += json::parse(line)["text"].get<std::string>();
    all += between;
  }
  return all;
}

/// The ids of a text that is cut wherever it can be, each part of `part_bytes` or more.
Ids ids_in_parts(const Tokenizer& tokenizer, std::string_view text, size_t part_bytes, int& parts) {
  Ids ids;
  Encoder encoder(tokenizer);
  bool continues = false;
  parts = 0;
  while (!text.empty()) {
    TextCut cut{text.size(), false};
    for (size_t from = part_bytes; from < text.size(); from += 1000) {
      if (const auto found = place_to_cut(tokenizer, text, from)) {
        cut = *found;
        break;
      }
    }
    encoder.append(text.substr(0, cut.at), ids,
                   {.add_special_tokens = false, .continues_text = continues});
    continues = cut.continues;
    text.remove_prefix(cut.at);
    ++parts;
  }
  return ids;
}

class CutTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CutTest, PartsGiveTheTokensOfTheWhole) {
  const auto folder = "tests/fixtures/tokenizers/" + GetParam();
  const auto tokenizer = load_tokenizer(folder);
  for (const std::string_view between : {" and ", "\n", "\n\n", "\r\n", " \n  x = 1;\n"}) {
    const auto text = hard_text(folder, between);
    Ids whole;
    Encoder(tokenizer).append(text, whole, {.add_special_tokens = false});
    for (const size_t part_bytes : {100, 3000}) {
      int parts = 0;
      EXPECT_EQ(ids_in_parts(tokenizer, text, part_bytes, parts), whole) << json(between);
      EXPECT_GT(parts, static_cast<int>(text.size() / (part_bytes + 2000))) << json(between);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, CutTest,
                         ::testing::Values("gpt2_style", "llama3_style", "qwen2_style",
                                           "sentencepiece_bpe", "wordpiece_bert"));

}  // namespace
}  // namespace tessera::text
