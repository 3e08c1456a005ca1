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
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}]})");
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

TEST(Example, RefusesAnEmptyAnswerThatWouldBeLearned) {
  const auto empty = HasSubstr("message 2: the assistant's answer is empty");
  EXPECT_THAT(
      refusal(
          R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": ""}]})"),
      empty);
  EXPECT_THAT(
      refusal(
          R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": []}]})"),
      empty);
  EXPECT_THAT(refusal(R"({"instruction": "u", "output": ""})"), empty);
  EXPECT_THAT(refusal(R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt"}]})"),
              empty);
  EXPECT_THAT(refusal(R"({"prompt": "p", "completion": ""})"),
              HasSubstr("completion: expected a text"));
  // Said by thoughts alone, or not learned.
  EXPECT_EQ(
      refusal(
          R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "reasoning_content": "r"}]})"),
      "(accepted)");
  EXPECT_EQ(
      refusal(
          R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "train": false},
                                     {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})"),
      "(accepted)");
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

Pair pair_in(const char* row) { return read_pair(Json::parse(row), Learn::assistant); }

std::string refusal_of_pair(const char* row) {
  try {
    pair_in(row);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string texts(const Example& example) {
  if (const auto* text = std::get_if<Text>(&example)) return text->prompt + "|" + text->completion;
  const auto& [inputs, learned] = std::get<Conversation>(example);
  std::string all;
  for (size_t i = 0; i < learned.size(); ++i) {
    all += (learned[i] ? "+" : "-") + inputs.messages[i]["content"].get<std::string>();
  }
  return all;
}

// Templates read one name or another.
TEST(Example, ReasoningHasItsNames) {
  for (const auto* name : {"reasoning_content", "thinking", "reasoning"}) {
    auto row = Json::parse(R"({"messages": [{"role": "user", "content": "Q"}]})");
    row["messages"].push_back({{"role", "assistant"}, {"content", "A"}, {name, "R"}});
    const auto example = read_example(row, shape_of(row), Learn::assistant);
    const auto& answer = std::get<Conversation>(example).inputs.messages[1];
    EXPECT_EQ(answer.at("thinking"), "R") << name;
    EXPECT_EQ(answer.at("reasoning_content"), "R") << name;
    EXPECT_EQ(answer.at("content"), "A") << name;
  }
}

TEST(Pair, OfTexts) {
  EXPECT_EQ(shape_of(Json::parse(R"({"chosen": "a", "rejected": "b"})")), RowShape::preference);
  const auto told = pair_in(R"({"prompt": "Sky? ", "chosen": "Blue.", "rejected": "Blue!"})");
  EXPECT_EQ(texts(told.chosen), "Sky? |Blue.");
  EXPECT_EQ(texts(told.rejected), "Sky? |Blue!");
  const auto shared = pair_in(R"({"chosen": "The sky is blue", "rejected": "The sky is green"})");
  EXPECT_EQ(texts(shared.chosen), "The sky is| blue");
  EXPECT_EQ(texts(shared.rejected), "The sky is| green");
  // Two characters that begin with the same byte.
  EXPECT_EQ(texts(pair_in("{\"chosen\": \"x\u00e4\", \"rejected\": \"x\u00f6\"}").chosen),
            "x|\u00e4");
}

TEST(Pair, OfMessages) {
  const char* implicit = R"({"chosen": [{"role": "user", "content": "Sky?"},
                                        {"role": "assistant", "content": "Blue"}],
                             "rejected": [{"role": "user", "content": "Sky?"},
                                          {"role": "assistant", "content": "Green"}], "tools": []})";
  EXPECT_EQ(texts(pair_in(implicit).chosen), "-Sky?+Blue");
  EXPECT_EQ(texts(pair_in(implicit).rejected), "-Sky?+Green");
  const auto told = pair_in(R"({"prompt": [{"role": "user", "content": "Sky?"}],
                                "chosen": [{"role": "assistant", "content": "Blue"}],
                                "rejected": [{"role": "assistant", "content": "Green"}]})");
  EXPECT_EQ(texts(told.rejected), "-Sky?+Green");
  // The user's text beside messages: alone, or once more in front of them.
  const auto text =
      pair_in(R"({"prompt": "Sky?", "chosen": [{"role": "assistant", "content": "Blue"}],
                                "rejected": [{"role": "assistant", "content": "Green"}]})");
  EXPECT_EQ(texts(text.chosen), "-Sky?+Blue");
  auto repeated = Json::parse(implicit);
  repeated["prompt"] = "Sky?";
  EXPECT_EQ(texts(read_pair(repeated, Learn::assistant).chosen), "-Sky?+Blue");
  // Answers that are shared are of the prompt.
  EXPECT_EQ(texts(pair_in(R"({"chosen": [{"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
        {"role": "assistant", "content": "4"}], "rejected": [{"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
        {"role": "assistant", "content": "5"}]})")
                      .chosen),
            "-1-2-3+4");
}

// Tools answered otherwise, keys stand in another order: the same prompt.
TEST(Pair, OfConversationsThatPart) {
  const char* call = R"({"role": "assistant", "content": "call"})";
  const auto row = [&](const char* chosen, const char* rejected) {
    return fmt::format(R"({{"prompt": [{{"role": "user", "content": "Q"}}],
      "chosen": [{0}, {{"role": "tool", "content": "{1}"}}, {{"role": "assistant", "content": "good"}}],
      "rejected": [{0}, {{"content": "{2}", "role": "tool"}}, {{"role": "assistant", "content": "bad", "id": 3}}]}})",
                       call, chosen, rejected);
  };
  EXPECT_EQ(texts(pair_in(row("x", "y").c_str()).rejected), "-Q+call+y+bad");
  EXPECT_EQ(texts(pair_in(row("x", "x").c_str()).chosen), "-Q+call+x+good");
}

TEST(Pair, RefusesWhatIsNone) {
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "a"})"), HasSubstr("rejected: expected a text or"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "a", "rejected": 3})"), HasSubstr("got number"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "a", "rejected": ""})"),
              HasSubstr("rejected: expected an answer, got none"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "a", "rejected": [{}]})"), HasSubstr("one of each"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "a", "rejected": "a"})"), HasSubstr("are equal"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": "ab", "rejected": "abc"})"),
              HasSubstr("chosen: expected an answer behind"));
  EXPECT_THAT(refusal_of_pair(R"({"chosen": [{"role": "user", "content": "a"}],
                                  "rejected": [{"role": "user", "content": "b"}]})"),
              HasSubstr("chosen: expected an answer of the assistant, found none"));
  const auto asked = [](const char* chosen, const char* rejected, const char* prompt) {
    const char* side =
        R"("{}": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": "{}"}}])";
    return fmt::format("{{{}, {}{}}}", fmt::format(fmt::runtime(side), "chosen", chosen, "good"),
                       fmt::format(fmt::runtime(side), "rejected", rejected, "bad"), prompt);
  };
  EXPECT_THAT(refusal_of_pair(asked("x", "y", "").c_str()),
              HasSubstr("chosen: message 1: expected both answers behind the same messages"));
  EXPECT_THAT(refusal_of_pair(asked("x", "y", R"(, "prompt": "x")").c_str()),
              HasSubstr("rejected: message 2: expected both answers behind the same messages"));
  EXPECT_THAT(refusal_of_pair(R"({"prompt": 7, "chosen": [{"role": "assistant", "content": "a"}],
                                  "rejected": [{"role": "assistant", "content": "b"}]})"),
              HasSubstr("prompt: expected a text or a list of messages, got number"));
}

}  // namespace
}  // namespace tessera::documents
