#include "tessera/config/accelerate/normal_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/base/nearest.h"
#include "tessera/base/utf8.h"
#include "tessera/config/accelerate/shown_value.h"

namespace tessera::config::accelerate {
namespace {

constexpr size_t kLongestText = 4096;  // the longest path of Linux

std::string expected(const Key& key) {
  if (!key.choices.empty()) return fmt::format("one of {}", fmt::join(key.choices, ", "));
  const auto range = allowed_values(key.range);
  const auto with_range = [&](const std::string& noun) {
    return range.empty() ? noun : noun + " " + range;
  };
  switch (key.type) {
    case KeyType::boolean:
      return "true or false";
    case KeyType::integer:
      return with_range("a whole number");
    case KeyType::number:
      return with_range("a number");
    case KeyType::list:
      return "a list such as [a, b], of texts on one line";
    case KeyType::text:
      break;
  }
  return fmt::format("a text on one line, UTF-8 of at most {} bytes", kLongestText);
}

/// The truth value of a text as Accelerate's str_to_bool reads it, whatever the case.
std::optional<bool> truth(const std::string& text) {
  const auto lower = lower_case(text);
  if (lower == "t" || lower == "1") return true;
  if (lower == "f" || lower == "0") return false;
  return parse_bool(lower);
}

std::optional<std::string> choice(const Key& key, const std::string& text) {
  const auto& choices = key.choices;
  const auto found = std::ranges::find_if(
      choices, [&](const auto& c) { return lower_case(c) == lower_case(text); });
  if (found != choices.end()) return *found;
  if (choices.front() == "true" && truth(text)) return *truth(text) ? "true" : "false";
  if (key.section != "fsdp_config" || key.type != KeyType::text) return {};
  const size_t first =
      choices.front() == "true" ? 2 : 0;  // the strategies of fsdp_reshard_after_forward
  const auto number = parse_integer(text);
  if (!number || *number < 1 || static_cast<size_t>(*number) > choices.size() - first) return {};
  return choices[first + static_cast<size_t>(*number) - 1];
}

/// An item as a list in YAML has it: in quotes if it would end the list or mean something else.
std::string list_item(const std::string& item) {
  const bool plain = std::ranges::all_of(item, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  const bool word = !item.empty() && item != "-" && lower_case(item) != "null";
  return plain && word ? item : in_yaml_quotes(item);
}

std::string list_value(std::vector<std::string> items) {
  for (auto& item : items) item = list_item(item);
  return fmt::format("[{}]", fmt::join(items, ", "));
}

/// A list without brackets: "[a, b]", "(a, b)" and "a,b" are alike.
std::string list_text(std::string text) {
  if (text.size() > 1 && (text.front() == '[' || text.front() == '(')) {
    text = text.substr(1, text.size() - 2);
  }
  std::vector<std::string> items;
  for (size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    auto item = text.substr(begin, end - begin);
    item.erase(0, item.find_first_not_of(' '));
    item.erase(item.find_last_not_of(' ') + 1);
    if (!item.empty()) items.push_back(item);
    begin = end + 1;
  }
  return list_value(std::move(items));
}

/// May `text` stand in a line of a ledger, a file or an environment?
bool is_line(const std::string& text) {
  return text.size() <= kLongestText && is_utf8(text) &&
         std::ranges::none_of(text, [](unsigned char c) { return std::iscntrl(c) != 0; });
}

std::optional<std::string> scalar(const Key& key, const std::string& text) {
  if (!key.choices.empty()) return choice(key, text);
  switch (key.type) {
    case KeyType::boolean: {
      const auto value = truth(text);
      return value ? std::optional<std::string>(*value ? "true" : "false") : std::nullopt;
    }
    case KeyType::integer: {
      const auto value = parse_integer(text);
      if (!value || !in_range(static_cast<double>(*value), key.range)) return {};
      return fmt::format("{}", *value);
    }
    case KeyType::number: {
      const auto value = parse_number(text);
      if (!value || !in_range(*value, key.range)) return {};
      return fmt::format("{}", *value);
    }
    case KeyType::list:
      return is_line(text) ? std::optional(list_text(text)) : std::nullopt;
    case KeyType::text:
      break;
  }
  return is_line(text) ? std::optional(text) : std::nullopt;
}

}  // namespace

std::string in_yaml_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

std::string normal_value(const Key& key, const RawValue& raw, const std::string& where) {
  using Kind = RawValue::Kind;
  std::optional<std::string> value;
  if (raw.kind == Kind::scalar) value = scalar(key, raw.text);
  if (raw.kind == Kind::list && key.type == KeyType::list &&
      std::ranges::all_of(raw.items, is_line)) {
    value = list_value(raw.items);
  }
  if (value) return *value;
  const auto broken = std::ranges::find_if_not(raw.items, is_line);
  const auto got = raw.kind == Kind::scalar    ? quoted(shown_value(key.name, raw.text))
                   : raw.kind != Kind::list    ? raw.text
                   : broken != raw.items.end() ? quoted(*broken)
                                               : "a list";
  const auto hint = raw.kind == Kind::scalar && !key.choices.empty() && raw.text.size() <= 64
                        ? did_you_mean(raw.text, key.choices)
                        : "";
  user_error("{}: {}: expected {}, got {}{}", where, key.dotted(), expected(key), got, hint);
}

}  // namespace tessera::config::accelerate
