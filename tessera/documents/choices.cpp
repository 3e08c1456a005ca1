#include "tessera/documents/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/quoted.h"
#include "tessera/base/utf8.h"
#include "tessera/records/reader.h"

namespace tessera::documents {
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
        "number from 0 without quotes",
        quoted(name), *as_text, *as_place);
  }
  return as_text ? as_text : as_place;
}

/// With what the tokenizer puts around a text, but a text that begins so already gets it once.
std::vector<int64_t> begun_once(const TextEncoding& encoding, const std::string& text) {
  auto tokens = encoding.whole(text);
  if (tokens.size() < 2 || tokens[0] != tokens[1]) return tokens;
  auto plain = encoding.plain(text);
  return plain.size() < tokens.size() ? plain : tokens;
}

double standard_error(double share, size_t count) {
  return count < 2 ? 0 : std::sqrt(share * (1 - share) / static_cast<double>(count - 1));
}

size_t place_of_largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
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

ChoiceRows load_choices(const ChoiceOptions& options) {
  records::RecordReader reader({.paths = options.paths, .skip_bad_lines = options.skip_bad_lines});
  ChoiceRows found;
  while (auto record = reader.next()) {
    if (options.max_rows > 0 && std::ssize(found.rows) == options.max_rows) break;
    try {
      found.rows.push_back(read_choice_row(record->value));
    } catch (const UserError& error) {  // where it stands
      const auto line = fmt::format("{}: {}", reader.place(*record), error.what());
      if (!options.skip_bad_lines)
        user_error("{}; set skip_bad_lines to leave such rows out", line);
      if (found.skipped++ == 0) found.first_skipped = line;
    }
  }
  found.skipped += reader.num_skipped();
  if (found.first_skipped.empty()) found.first_skipped = reader.first_skipped();
  if (found.rows.empty()) {
    user_error("{}: no question that can be answered; the first: {}", options.paths.front(),
               found.first_skipped.empty() ? "the file has no row" : found.first_skipped);
  }
  return found;
}

std::vector<std::vector<MarkedToken>> encode_choices(const ChoiceRow& row,
                                                     const TextEncoding& encoding,
                                                     int64_t seq_len) {
  auto context = row.context;
  const auto last = context.find_last_not_of(" \t\n\r");
  context.resize(last == std::string::npos ? 0 : last + 1);
  const auto blanks =
      context.size() < row.context.size() ? row.context.substr(context.size()) : " ";
  const auto beginning = context.empty() ? encoding.whole(context) : begun_once(encoding, context);
  std::vector<std::vector<MarkedToken>> documents;
  for (const auto& choice : row.choices) {
    auto tokens = beginning;
    if (context.empty()) {
      const auto plain = encoding.plain(blanks + choice);
      tokens.insert(tokens.end(), plain.begin(), plain.end());
    } else {
      tokens = begun_once(encoding, context + blanks + choice);
    }
    const auto before = std::min(std::ssize(beginning), std::ssize(tokens) - 1);
    auto& document = documents.emplace_back();
    for (auto i = std::max<int64_t>(0, std::ssize(tokens) - (seq_len + 1)); i < std::ssize(tokens);
         ++i) {
      const auto token = static_cast<MarkedToken>(tokens[static_cast<size_t>(i)]);
      document.push_back(i >= before ? token | kLearned : token);
    }
  }
  return documents;
}

ChoiceFigures choice_figures(std::span<const ChoiceRow> rows,
                             std::span<const double> log_probabilities) {
  size_t right = 0, right_by_length = 0, at = 0;
  for (const auto& row : rows) {
    std::vector<double> sums, by_length;
    for (const auto& choice : row.choices) {
      sums.push_back(log_probabilities[at++]);
      by_length.push_back(sums.back() / static_cast<double>(num_characters(choice)));
    }
    right += place_of_largest(sums) == row.answer ? 1 : 0;
    right_by_length += place_of_largest(by_length) == row.answer ? 1 : 0;
  }
  const auto share = [&](size_t count) {
    return static_cast<double>(count) / static_cast<double>(rows.size());
  };
  ChoiceFigures figures{.acc = share(right), .acc_norm = share(right_by_length)};
  figures.acc_stderr = standard_error(figures.acc, rows.size());
  figures.acc_norm_stderr = standard_error(figures.acc_norm, rows.size());
  return figures;
}

}  // namespace tessera::documents
