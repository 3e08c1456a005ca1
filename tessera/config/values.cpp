#include "tessera/config/values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"

namespace tessera::config {
namespace {

std::string describe(const RawValue& raw) {
  switch (raw.kind) {
    case RawValue::Kind::null:
      return "nothing (null)";
    case RawValue::Kind::scalar:
      return raw.quoted ? "the text " + quoted(raw.text) : quoted(raw.text);
    case RawValue::Kind::list:
      return "a list";
    case RawValue::Kind::map:
    case RawValue::Kind::other:
      return raw.text;
  }
  return raw.text;
}

constexpr const char* kFlagOrNumber = "true/false, or integer";

std::string expected(const Field& field) {
  const auto allowed = allowed_values(field);
  const auto type = type_name(field);
  if (!field.rule.choices.empty()) return (type == "list" ? "a list of " : "one of ") + allowed;
  const std::string noun = type == "integer"            ? "a whole number"
                           : type == "number"           ? "a number"
                           : type == "true/false"       ? "true or false"
                           : type == "list"             ? "a list of texts, none of them empty"
                           : type == "list of integers" ? "a list of whole numbers, each"
                           : type == "list of numbers"  ? "a list of numbers, each"
                           : type == "mapping to integers"
                               ? "names with whole numbers, as {a: 1}, each"
                           : type == "mapping to numbers" ? "names with numbers, as {a: 1}, each"
                           : type == kFlagOrNumber ? "true, false or a whole number of 1 or more"
                                                   : "a text";
  return allowed.empty() ? noun : noun + " " + allowed;
}

bool assign(const Field& field, const RawValue& raw, int64_t& out) {
  if (raw.kind != RawValue::Kind::scalar || raw.quoted) return false;
  const auto value = parse_integer(raw.text);
  if (!value || !in_range(static_cast<double>(*value), field.rule.range)) return false;
  out = *value;
  return true;
}

/// What is computed with is float32 at the most.
constexpr double kLargest = std::numeric_limits<float>::max();

std::optional<double> parse_float32(std::string_view text) {
  const auto value = parse_number(text);
  return value && std::abs(*value) <= kLargest ? value : std::nullopt;
}

bool assign(const Field& field, const RawValue& raw, double& out) {
  if (raw.kind != RawValue::Kind::scalar || raw.quoted) return false;
  const auto value = parse_float32(raw.text);
  if (!value || !in_range(*value, field.rule.range)) return false;
  out = *value;
  return true;
}

bool assign(const Field&, const RawValue& raw, bool& out) {
  if (raw.kind != RawValue::Kind::scalar || raw.quoted) return false;
  const auto value = parse_bool(raw.text);
  if (!value) return false;
  out = *value;
  return true;
}

/// The end of a line about a text that is none of the choices.
std::string instead_of(const std::string& text, const FieldRule& rule) {
  const auto same = std::ranges::find(rule.others, text, [](const auto& row) { return row.first; });
  if (same == rule.others.end()) return did_you_mean(text, rule.choices);
  return "; here that is " + same->second;
}

/// Is `text` one of the field's choices, or has it none?
bool is_choice(const Field& field, const std::string& text) {
  const auto& choices = field.rule.choices;
  return choices.empty() || std::ranges::find(choices, text) != choices.end();
}

bool assign(const Field& field, const RawValue& raw, std::string& out) {
  if (raw.kind != RawValue::Kind::scalar) return false;
  if (!is_choice(field, raw.text)) return false;
  out = raw.text;
  return true;
}

bool assign(const Field& field, const RawValue& raw, std::vector<std::string>& out) {
  // One text stands for a list of one: `train: corpus/`.
  auto items = raw.kind == RawValue::Kind::scalar ? std::vector{raw.text} : raw.items;
  if (raw.kind != RawValue::Kind::scalar && raw.kind != RawValue::Kind::list) return false;
  for (const auto& item : items) {
    if (item.empty() || !is_choice(field, item)) return false;
  }
  out = std::move(items);
  return true;
}

template <typename T>
bool assign_list(const Field& field, const RawValue& raw,
                 std::optional<T> (*parse)(std::string_view), std::vector<T>& out) {
  std::vector<std::string> texts;
  std::vector<T> items;
  if (!assign(field, raw, texts)) return false;
  for (const auto& text : texts) {
    const auto value = parse(text);
    if (!value || !in_range(static_cast<double>(*value), field.rule.range)) return false;
    items.push_back(*value);
  }
  out = std::move(items);
  return true;
}

bool assign(const Field& field, const RawValue& raw, std::vector<int64_t>& out) {
  return assign_list(field, raw, parse_integer, out);
}

bool assign(const Field& field, const RawValue& raw, std::vector<double>& out) {
  return assign_list(field, raw, parse_float32, out);
}

template <typename T>
bool assign_map(const Field& field, const RawValue& raw,
                std::optional<T> (*parse)(std::string_view), models::Patterns<T>& out) {
  if (raw.kind != RawValue::Kind::map) return false;
  models::Patterns<T> patterns;
  for (const auto& [name, text] : raw.entries) {
    const auto value = parse(text);
    const bool known = std::ranges::any_of(
        patterns, [&name = name](const auto& pattern) { return pattern.first == name; });
    if (known || name.empty() || !value) return false;
    if (!in_range(static_cast<double>(*value), field.rule.range)) return false;
    patterns.emplace_back(name, *value);
  }
  out = std::move(patterns);
  return true;
}

bool assign(const Field& field, const RawValue& raw, models::Patterns<int64_t>& out) {
  return assign_map(field, raw, parse_integer, out);
}

bool assign(const Field& field, const RawValue& raw, models::Patterns<double>& out) {
  return assign_map(field, raw, parse_float32, out);
}

/// Quotes make no difference: earlier versions printed it as a text.
bool assign(const Field&, const RawValue& raw, parallel::ReshardAfterForward& out) {
  if (raw.kind != RawValue::Kind::scalar) return false;
  const auto ranks = parse_integer(raw.text);
  const auto flag = parse_bool(raw.text);
  if (flag) out = *flag;
  if (ranks && *ranks >= 1 && *ranks <= std::numeric_limits<int>::max())
    out = static_cast<int>(*ranks);
  else if (!flag)
    return false;
  return true;
}

bool assign(const Field& field, const RawValue& raw, ChoiceSlot out) {
  if (raw.kind != RawValue::Kind::scalar) return false;
  if (is_choice(field, raw.text)) return out.assign(raw.text);
  const auto flag = parse_bool(raw.text);  // "True" is true
  return flag && is_choice(field, *flag ? "true" : "false") && out.assign(*flag ? "true" : "false");
}

template <typename T>
bool assign(const Field& field, const RawValue& raw, std::optional<T>& out) {
  if (raw.kind == RawValue::Kind::null) {
    out.reset();
    return true;
  }
  T value{};
  if (!assign(field, raw, value)) return false;
  out = value;
  return true;
}

std::string to_text(int64_t value) { return fmt::format("{}", value); }
std::string to_text(double value) { return fmt::format("{}", value); }
std::string to_text(bool value) { return value ? "true" : "false"; }

std::string to_text(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += escape_controls(std::string(1, c));
    }
  }
  return out + '"';
}

std::string to_text(const std::vector<std::string>& value) {
  std::vector<std::string> items;
  for (const auto& item : value) items.push_back(to_text(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string to_text(const std::vector<int64_t>& value) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}

std::string to_text(const std::vector<double>& value) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}

template <typename T>
std::string to_text(const models::Patterns<T>& value) {
  std::vector<std::string> items;
  for (const auto& [name, of_it] : value) {
    items.push_back(fmt::format("{}: {}", to_text(name), of_it));
  }
  return fmt::format("{{{}}}", fmt::join(items, ", "));
}

std::string to_text(const parallel::ReshardAfterForward& value) {
  return std::visit([](auto choice) { return fmt::format("{}", choice); }, value);
}

template <typename T>
std::string to_text(const std::optional<T>& value) {
  return value ? to_text(*value) : "null";
}

/// The accessor serves reading and writing; here it only reads.
Slot read_only_slot(const Field& field, const RunConfig& config) {
  return field.slot(const_cast<RunConfig&>(config));
}

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // Clang 14 to 16 do not find it themselves

}  // namespace

void set_field(const Field& field, const RawValue& raw, const std::string& where,
               RunConfig& config) {
  const bool fits = std::visit(Overloaded{[&](ChoiceSlot slot) { return assign(field, raw, slot); },
                                          [&](auto* slot) { return assign(field, raw, *slot); }},
                               field.slot(config));
  if (fits) return;
  auto texts = raw.items;
  if (raw.kind == RawValue::Kind::scalar) texts = {raw.text};
  for (const auto& [_, text] : raw.entries) texts.push_back(text);
  const auto is_beyond = [&](const auto& text) {
    const auto number = parse_number(text);
    return number && std::abs(*number) > kLargest && std::isinf(field.rule.range.high);
  };
  if (const auto beyond = std::ranges::find_if(texts, is_beyond);
      beyond != texts.end() && type_name(field).find("number") != std::string::npos) {
    user_error("{}: expected a number that float32 has, at most {:.2g}, got {}", where, kLargest,
               tessera::quoted(*beyond));
  }
  const auto wrong =
      std::ranges::find_if(texts, [&](const auto& text) { return !is_choice(field, text); });
  const bool in_list = wrong != texts.end() && raw.kind == RawValue::Kind::list;
  user_error("{}: expected {}, got {}{}", where, expected(field),
             in_list ? tessera::quoted(*wrong) + " in it" : describe(raw),
             wrong == texts.end() ? "" : instead_of(*wrong, field.rule));
}

void copy_field(const Field& field, const RunConfig& from, RunConfig& to) {
  const auto source = read_only_slot(field, from);
  std::visit(Overloaded{[&](ChoiceSlot slot) { slot.assign(std::get<ChoiceSlot>(source).text()); },
                        [&](auto* slot) { *slot = *std::get<decltype(slot)>(source); }},
             field.slot(to));
}

std::string yaml_value(const Field& field, const RunConfig& config) {
  const auto slot = read_only_slot(field, config);
  const auto* text = std::get_if<std::string*>(&slot);
  if (text != nullptr && !field.rule.choices.empty()) return **text;
  return std::visit(Overloaded{[](ChoiceSlot value) { return std::string(value.text()); },
                               [](const auto* value) { return to_text(*value); }},
                    slot);
}

bool is_default(const Field& field, const RunConfig& config) {
  return yaml_value(field, config) == yaml_value(field, RunConfig{});
}

std::string type_name(const Field& field) {
  RunConfig config;
  return std::visit(
      [](auto value) -> std::string {
        if constexpr (std::is_same_v<decltype(value), ChoiceSlot>) {
          return "text";
        } else {
          using T = std::decay_t<decltype(*value)>;
          if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, std::optional<int64_t>>)
            return "integer";
          if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>)
            return "number";
          if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>)
            return "true/false";
          if constexpr (std::is_same_v<T, std::string>) return "text";
          if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "list of integers";
          if constexpr (std::is_same_v<T, std::vector<double>>) return "list of numbers";
          if constexpr (std::is_same_v<T, models::Patterns<int64_t>>) return "mapping to integers";
          if constexpr (std::is_same_v<T, models::Patterns<double>>) return "mapping to numbers";
          if constexpr (std::is_same_v<T, parallel::ReshardAfterForward>) return kFlagOrNumber;
          return "list";
        }
      },
      field.slot(config));
}

std::string allowed_values(const Field& field) {
  if (!field.rule.choices.empty()) return fmt::format("{}", fmt::join(field.rule.choices, ", "));
  return allowed_values(field.rule.range);
}

std::string allowed_values(const Range& range) {
  std::string text;
  if (std::isfinite(range.low) && std::isfinite(range.high)) {
    text = fmt::format("in {}{}, {}{}", range.low_open ? '(' : '[', range.low, range.high,
                       range.high_open ? ')' : ']');
  } else if (std::isfinite(range.low)) {
    text = fmt::format("{} {}", range.low_open ? ">" : ">=", range.low);
  }
  return range.also ? fmt::format("{}, or {}", text, *range.also) : text;
}

bool in_range(double x, const Range& range) {
  if (range.also && x == static_cast<double>(*range.also)) return true;
  return (range.low_open ? x > range.low : x >= range.low) &&
         (range.high_open ? x < range.high : x <= range.high);
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size()) return value;
  // "1e3" is a whole number; beyond 2^53 a double no longer says which.
  const auto number = parse_number(text);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 0x1p53) return {};
  return static_cast<int64_t>(*number);
}

std::optional<bool> parse_bool(const std::string& text) {
  bool value = false;
  if (!YAML::convert<bool>::decode(YAML::Node(text), value)) return {};
  return value;
}

}  // namespace tessera::config
