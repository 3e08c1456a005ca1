#include "tessera/documents/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::documents {
namespace {

using data::Learn;
using data::RowShape;
using ::testing::HasSubstr;

Conversation conversation(const char* row, Learn learn = Learn::assistant) {
  const auto json = Json::parse(row);
  return std::get<Conversation>(read_example(json, shape_of(json), learn));
}

std::string roles(const Conversation& conversation) {
  std::string letters;
  for (const auto& message : conversation.inputs.messages)
    letters += message["role"].get<std::string>()[0];
  return letters;
}

std::string refusal(const char* row) {
  try {
    conversation(row);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST(Example, ShapesAreFoundByTheirKeys) {
  EXPECT_EQ(shape_of(Json::parse(R"({"id": 1, "messages": []})")), RowShape::messages);
  EXPECT_EQ(shape_of(Json::parse(R"({"conversations": []})")), RowShape::conversations);
  EXPECT_EQ(shape_of(Json::parse(R"({"instruction": "", "input": "", "output": ""})")),
            RowShape::alpaca);
  EXPECT_EQ(shape_of(Json::parse(R"({"prompt": "", "completion": ""})")),
            RowShape::prompt_completion);
  EXPECT_EQ(shape_of(Json::parse(R"({"text": ""})")), RowShape::text);
  EXPECT_THROW(shape_of(Json::parse(R"({"question": "", "answer": ""})")), UserError);
}

TEST(Example, EveryShapeBecomesMessages) {
  EXPECT_EQ(
      roles(conversation(
          R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                                   {"role": "assistant", "content": "a"}]})")),
      "sua");
  const auto sharegpt = conversation(
      R"({"system": "s", "conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"},
          {"from": "human", "value": "v"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
          {"from": "observation", "value": "2"}, {"from": "gpt", "value": "b"}], "tools": "[{\"name\": \"f\"}]"})");
  EXPECT_EQ(roles(sharegpt), "suauata");
  EXPECT_EQ(sharegpt.inputs.tools.size(), 1);
  EXPECT_EQ(sharegpt.inputs.messages[4]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(sharegpt.inputs.messages[4]["content"], "");
  const auto alpaca = conversation(
      R"({"instruction": "add", "input": "1 2", "output": "3", "history": [["a", "b"]], "system": "s"})");
  EXPECT_EQ(roles(alpaca), "suaua");
  EXPECT_EQ(alpaca.inputs.messages[3]["content"], "add\n1 2");
  const auto prompted = conversation(
      R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}],
          "completion": [{"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(roles(prompted), "uaua");
  EXPECT_EQ(prompted.learned, (std::vector<bool>{false, false, false, true}));
  const auto row = Json::parse(R"({"prompt": "p", "completion": "c"})");
  const auto text = std::get<Text>(read_example(row, shape_of(row), Learn::assistant));
  EXPECT_EQ(text.prompt + "|" + text.completion, "p|c");
}

TEST(Example, PartsOfTextAreOneText) {
  const auto parts = conversation(
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": null, "tool_calls": []}]})");
  EXPECT_EQ(parts.inputs.messages[0]["content"], "ab");
  EXPECT_EQ(parts.inputs.messages[1]["content"], "");
}

TEST(Example, WhatIsLearnedCanBeChosen) {
  const char* row =
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "weight": 1},
          {"role": "user", "content": "v"}, {"role": "assistant", "content": "b", "train": false},
          {"role": "user", "content": "w"}, {"role": "assistant", "content": "c"}]})";
  const auto of_assistant = [&](Learn learn) {
    const auto learned = conversation(row, learn).learned;
    return std::vector<bool>{learned[1], learned[3], learned[5]};
  };
  EXPECT_EQ(of_assistant(Learn::assistant), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(of_assistant(Learn::last), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(of_assistant(Learn::marked), (std::vector<bool>{true, false, false}));
  const auto message = conversation(row).inputs.messages[1];
  EXPECT_FALSE(message.contains("weight"));  // templates do not see it
}

TEST(Example, RefusesWhatIsNoConversation) {
  EXPECT_THAT(refusal(R"({"messages": []})"), HasSubstr("at least one message"));
  EXPECT_THAT(refusal(R"({"messages": 3})"), HasSubstr("messages: expected a list"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": "u"}]})"),
              HasSubstr("an answer"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "assistant", "content": "a"}]})"),
              HasSubstr("begins with"));
  EXPECT_THAT(refusal(R"({"messages": [{"content": "u"}]})"), HasSubstr("message 1: role"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": 3}]})"),
              HasSubstr("message 1: content"));
  EXPECT_THAT(refusal(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
              HasSubstr("parts"));
  EXPECT_THAT(refusal(R"({"conversations": [{"from": "alien", "value": "u"}]})"),
              HasSubstr("'alien'"));
  EXPECT_THAT(refusal(R"({"conversations": [{"from": "function_call", "value": "no"}]})"),
              HasSubstr("function_call"));
  EXPECT_THAT(refusal(R"({"instruction": "a", "output": null})"),
              HasSubstr("output: expected a text"));
}

}  // namespace
}  // namespace tessera::documents
