#include "tessera/text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/testing.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::message_of;

const fs::path kFixtures = "tests/fixtures/tokenizers";

/// Objects of a file of JSON lines.
std::vector<json> lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<json> all;
  for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
  return all;
}

class FixtureTest : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path folder() const { return kFixtures / GetParam(); }
};

json ids_of(const Encoding& encoding) { return json(encoding.ids); }

json offsets_of(const Encoding& encoding) {
  json all = json::array();
  for (const auto& each : encoding.offsets) all.push_back({each.begin, each.end});
  return all;
}

TEST_P(FixtureTest, EncodesAndDecodes) {
  const auto tokenizer = load_tokenizer(folder());
  Encoder encoder(tokenizer);
  int cases = 0;
  for (const auto& each : lines(folder() / "expected.jsonl")) {
    const auto text = each["text"].get<std::string>();
    const EncodeOptions options{.add_special_tokens = each["add_special_tokens"]};
    const auto encoding = tokenizer.encode(text, options);
    ASSERT_EQ(ids_of(encoding), each["ids"]) << each["name"];
    ASSERT_EQ(offsets_of(encoding), each["offsets"]) << each["name"];
    for (const bool again : {false, true}) {
      std::vector<uint32_t> ids;
      encoder.append(text, ids, options);
      ASSERT_EQ(json(ids), each["ids"]) << each["name"] << again;
    }
    ASSERT_EQ(tokenizer.decode(encoding.ids), each["decoded"].get<std::string>()) << each["name"];
    if (each.contains("decoded_skip_special")) {
      ASSERT_EQ(tokenizer.decode(encoding.ids, true),
                each["decoded_skip_special"].get<std::string>())
          << each["name"];
    }
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const auto id : encoding.ids) {
      const auto part = stream.push(id);
      EXPECT_TRUE(is_utf8(part));
      streamed += part;
    }
    ASSERT_EQ(streamed + stream.finish(), each["decoded"].get<std::string>()) << each["name"];
    ++cases;
  }
  EXPECT_GT(cases, 100);
}

TEST_P(FixtureTest, DecodesIdsThatNoEncoderGives) {
  const auto tokenizer = load_tokenizer(folder());
  const auto cases = lines(folder() / "decode.jsonl");
  EXPECT_GT(cases.size(), 20);
  for (const auto& each : cases) {
    const auto ids = each["ids"].get<std::vector<uint32_t>>();
    const bool skip = each.value("skip_special_tokens", false);
    EXPECT_EQ(tokenizer.decode(ids, skip), each["decoded"].get<std::string>()) << each.dump();
    StreamDecoder stream(tokenizer, skip);
    for (const auto id : ids) EXPECT_TRUE(is_utf8(stream.push(id))) << each.dump();
    EXPECT_TRUE(is_utf8(stream.finish())) << each.dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, FixtureTest,
                         ::testing::Values("gpt2_style", "llama3_style", "qwen2_style",
                                           "sentencepiece_bpe", "wordpiece_bert"));

}  // namespace
}  // namespace tessera::text
