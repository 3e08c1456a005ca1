#include "tessera/inference/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/quoted.h"

namespace tessera::inference {
namespace {

using records::Json;
using Names = std::vector<std::string>;

const Names kContext{"question", "query", "context", "prompt"};
const Names kChoices{"choices", "options", "endings"};
const Names kAnswer{"answer", "answerKey", "label", "gold"};

const Json* find(const Json& row, const Names& names) {
  for (const auto& name : names) {
    if (const auto found = row.find(name); found != row.end()) return &*found;
  }
  return nullptr;
}

const Json& get(const Json& row, const Names& names) {
  const auto* found = find(row, names);
  if (found == nullptr) user_error("expected a key {}, got none", fmt::join(names, " or "));
  return *found;
}

std::vector<std::string> texts_of(const Json& value, const char* what) {
  std::vector<std::string> texts;
  const bool are_texts = value.is_array() && std::ranges::all_of(value, [](const Json& each) {
                           return each.is_string();
                         });
  if (!are_texts) user_error("{}: expected a list of texts, got {}", what, value.type_name());
  for (const auto& text : value) texts.push_back(text);
  return texts;
}

std::optional<size_t> place_of(const std::vector<std::string>& texts, const std::string& text) {
  const auto found = std::ranges::find(texts, text);
  if (found == texts.end()) return {};
  return static_cast<size_t>(found - texts.begin());
}

std::optional<size_t> number_in(const std::string& text) {
  size_t number = 0;
  const auto end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional(number) : std::nullopt;
}

/// A label; without labels a letter, a number or a choice itself, where no two of them say different things.
std::optional<size_t> named_place(const std::string& name, const std::vector<std::string>& labels,
                                  const std::vector<std::string>& choices) {
  if (const auto place = place_of(labels, name)) return place;
  const auto as_text = place_of(choices, name);
  if (!labels.empty()) return as_text;
  const bool is_letter = name.size() == 1 && name[0] >= 'A' && name[0] <= 'Z';
  const auto as_place = is_letter ? static_cast<size_t>(name[0] - 'A') : number_in(name);
  const bool is_place = as_place && *as_place < choices.size();
  if (as_text && is_place && *as_text != *as_place) {
    user_error(
        "the answer: {} is the text of choice {} and the name of choice {}; give its place, a "
        "number "
        "from 0 without quotes",
        quoted(name), *as_text, *as_place);
  }
  return as_text ? as_text : as_place;
}

}  // namespace

bool has_choices(const Json& row) { return find(row, kChoices) != nullptr; }

ChoiceRow read_choice_row(const Json& row) {
  ChoiceRow result;
  const auto& context = get(row, kContext);
  if (!context.is_string())
    user_error("the question: expected a text, got {}", context.type_name());
  result.context = context;
  const auto& choices = get(row, kChoices);
  std::vector<std::string> labels;
  if (choices.is_object() && choices.contains("text")) {
    result.choices = texts_of(choices["text"], "choices.text");
    if (choices.contains("label")) labels = texts_of(choices["label"], "choices.label");
  } else {
    result.choices = texts_of(choices, "choices");
  }
  const size_t count = result.choices.size();
  if (count < 2) user_error("choices: expected two or more, got {}", count);
  if (std::ranges::any_of(result.choices, &std::string::empty)) {
    user_error("choices: expected texts, got an empty one");
  }
  const auto& answer = get(row, kAnswer);
  std::optional<size_t> place;
  if (answer.is_number_unsigned()) place = answer.get<size_t>();
  if (answer.is_string()) place = named_place(answer, labels, result.choices);
  if (!place || *place >= count) {
    user_error("the answer: expected a place from 0 to {}, a label or one of the choices, got {}",
               count - 1, quoted(answer.is_string() ? answer.get<std::string>() : answer.dump()));
  }
  result.answer = *place;
  return result;
}

}  // namespace tessera::inference
