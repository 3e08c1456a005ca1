#include "tessera/base/strict_json.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/base/testing.h"

namespace tessera {
namespace {

std::string refusal_of(const std::string& text, int depth = kMaxJsonDepth) {
  return testing::message_of([&] { parse_strict_json("x.json", text, depth); });
}

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(StrictJson, ReadsAsTheLibraryDoes) {
  for (const char* text : {R"({"a": [1, -2, 0.5, "x", null, true, {"b": {}, "c": []}], "d": 1})",
                           "[]", "7", R"("text")", R"([[1], [[2], 3], {"a": [4]}])"}) {
    EXPECT_EQ(parse_strict_json("x.json", text), nlohmann::json::parse(text)) << text;
  }
}

TEST(StrictJson, RefusesInOneLine) {
  EXPECT_EQ(refusal_of("{"), "x.json: expected JSON in UTF-8, got an error at byte 2 of it");
  EXPECT_EQ(refusal_of("{} x"), "x.json: expected JSON in UTF-8, got an error at byte 4 of it");
  EXPECT_EQ(refusal_of("[1e400]"), "x.json: a number in its JSON is too large");
  EXPECT_EQ(refusal_of(R"({"a": 1, "b": {"a": 1}, "a": 2})"),
            "x.json: the key \"a\" stands twice in its JSON");
  EXPECT_EQ(refusal_of(nested(64)), "no error");
  EXPECT_EQ(refusal_of(nested(65)), "x.json: its JSON is nested too deep");
  EXPECT_EQ(refusal_of(nested(300'000)), "x.json: its JSON is nested too deep");
  EXPECT_EQ(refusal_of("[[[]]]", 2), "x.json: its JSON is nested too deep");
}

// Quadratic, this took a quarter of an hour: 20,000 entries 11 s, four times as many more than a
// minute.
TEST(StrictJson, AnObjectMayHaveManyEntries) {
  constexpr int kEntries = 200'000;
  std::string text = "{";
  for (int i = 0; i < kEntries; ++i) {
    text += fmt::format("{}\"layer.{}\":{{\"shape\":[2,3],\"data_offsets\":[{},{}]}}",
                        i == 0 ? "" : ",", i, 24L * i, 24L * (i + 1));
  }
  EXPECT_EQ(parse_strict_json("x.json", text + "}").size(), static_cast<size_t>(kEntries));
}

}  // namespace
}  // namespace tessera
