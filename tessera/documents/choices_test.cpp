#include "tessera/documents/choices.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::documents {
namespace {

TEST(Choices, AnswersArePlacesLabelsLettersOrTexts) {
  const auto answer = [](const std::string& row) {
    return read_choice_row(records::Json::parse(row)).answer;
  };
  EXPECT_EQ(answer(R"({"question": "q", "choices": ["a", "b"], "answer": 1})"), 1);
  EXPECT_EQ(answer(R"({"context": "q", "endings": ["a", "b"], "label": "1"})"), 1);
  EXPECT_EQ(answer(R"({"query": "q", "options": ["x", "y"], "gold": "B"})"), 1);
  EXPECT_EQ(answer(R"({"query": "q", "options": ["x", "y"], "gold": "y"})"), 1);
  const std::string arc =
      R"({"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": ")";
  EXPECT_EQ(answer(arc + "2\"}"), 1) << "a label, no place";
  // A choice that looks like a place is a choice; where it names two, nobody knows.
  EXPECT_EQ(answer(R"({"question": "q", "choices": ["3", "4", "5"], "answer": "4"})"), 1);
  EXPECT_EQ(answer(R"({"question": "q", "choices": ["0", "1"], "answer": "1"})"), 1);
  for (const auto* row : {R"({"choices": ["a", "b"], "answer": 0})",
                          R"({"question": "q", "choices": ["1", "2", "3"], "answer": "2"})",
                          R"({"question": "q", "choices": ["B", "C"], "answer": "B"})",
                          R"({"question": 1, "choices": ["a", "b"], "answer": 0})",
                          R"({"question": "q", "choices": ["a"], "answer": 0})",
                          R"({"question": "q", "choices": ["a", ""], "answer": 0})",
                          R"({"question": "q", "choices": ["a", "b"]})",
                          R"({"question": "q", "choices": ["a", "b"], "answer": -1})",
                          R"({"question": "q", "choices": ["a", "b"], "answer": "C"})",
                          R"({"question": "q", "choices": "ab", "answer": 0})"}) {
    EXPECT_THROW(answer(row), UserError) << row;
  }
}

/// Bytes, behind a 1 that begins every text.
const TextEncoding kBytes{
    .whole =
        [](const std::string& text) {
          std::vector<int64_t> tokens{1};
          tokens.insert(tokens.end(), text.begin(), text.end());
          return tokens;
        },
    .plain =
        [](const std::string& text) { return std::vector<int64_t>(text.begin(), text.end()); }};

std::string text_of(const std::vector<MarkedToken>& document, bool learned) {
  std::string text;
  for (const auto token : document) {
    if (is_learned(token) == learned) text += static_cast<char>(id_of(token));
  }
  return text;
}

TEST(Choices, AreLearnedBehindTheQuestion) {
  const ChoiceRow row{.context = "ab", .choices = {"x", "yz"}, .answer = 1};
  auto documents = encode_choices(row, kBytes, 16);
  ASSERT_EQ(documents.size(), 2);
  EXPECT_EQ(text_of(documents[1], false), "\1ab");
  EXPECT_EQ(text_of(documents[1], true), " yz");
  documents = encode_choices({.context = "ab\n", .choices = {"x", "yz"}, .answer = 1}, kBytes, 16);
  EXPECT_EQ(text_of(documents[0], true), "\nx") << "blanks at the question's end are the choice's";
  documents = encode_choices({.context = "", .choices = {"x", "yz"}, .answer = 1}, kBytes, 16);
  EXPECT_EQ(text_of(documents[0], false), "\1");
  EXPECT_EQ(text_of(documents[0], true), " x");
  documents = encode_choices(row, kBytes, 3);
  EXPECT_EQ(text_of(documents[1], false), "b") << "what is too long loses its beginning";
  EXPECT_EQ(text_of(documents[1], true), " yz");
}

TEST(Choices, FiguresAreSharesOfRightRows) {
  const std::vector<ChoiceRow> rows{{.context = "", .choices = {"a", "bbbb"}, .answer = 1},
                                    {.context = "", .choices = {"a", "b", "c"}, .answer = 2}};
  const auto figures = choice_figures(rows, std::vector<double>{-2, -4, -3, -2, -1});
  EXPECT_EQ(figures.acc, 0.5);
  EXPECT_EQ(figures.acc_norm, 1) << "-4 over four characters is more than -2 over one";
  EXPECT_EQ(figures.acc_stderr, 0.5);
  EXPECT_EQ(figures.acc_norm_stderr, 0);
}

}  // namespace
}  // namespace tessera::documents
