// Filters of one value: strings, numbers, JSON.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/chat/builtins.h"
#include "tessera/chat/string_operations.h"

namespace tessera::chat {
namespace {
namespace text_filter {

bool flag(const Value& value) { return !value.is_undefined() && truth(value); }

Value tojson(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  JsonOptions options{.ascii = flag(values[1]), .sort_keys = flag(values[4])};
  if (!values[2].is_undefined() && !values[2].is_none()) {
    options.indent = static_cast<int>(std::clamp<int64_t>(whole_number(values[2]), 0, 64));
    interpreter.spend(static_cast<uint64_t>(options.indent) * 16 * measure_of(values[0]).nodes);
  }
  if (!values[3].is_undefined() && !values[3].is_none()) {
    const auto separators = items_of(values[3]);
    if (separators.size() != 2) throw Failure("tojson: expected two separators");
    options.item_separator = text_of(separators[0]).bytes();
    options.key_separator = text_of(separators[1]).bytes();
    interpreter.spend((options.item_separator.size() + options.key_separator.size()) *
                      measure_of(values[0]).nodes);
  }
  return text_value(json_text(values[0], options));
}

Value trim(Interpreter&, Arguments& arguments) {
  return text_value(strip_text(written(arguments.values[0]), Ends::both, arguments.values[1]));
}

template <Case kCase>
Value cased(Interpreter&, Arguments& arguments) {
  return text_value(in_case(written(arguments.values[0]), kCase));
}

/// Jinja's title: words begin behind blanks and - ( { [ <.
Value title(Interpreter&, Arguments& arguments) {
  const Text text = written(arguments.values[0]);
  Text out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text.view(), at);
    out.append(in_case(text.slice(at, at + bytes), begins ? Case::upper : Case::lower));
    begins = is_space(code) ||
             (code < 0x80 &&
              std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
    at += bytes;
  }
  return text_value(std::move(out));
}

Value replace(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  const int64_t most =
      values[3].is_undefined() || values[3].is_none() ? -1 : whole_number(values[3]);
  return text_value(replaced(interpreter, written(values[0]), written(values[1]),
                             written(values[2]),
                             most < 0 ? std::string::npos : static_cast<size_t>(most)));
}

Value string(Interpreter&, Arguments& arguments) {
  return arguments.values[0].is_text() ? arguments.values[0]
                                       : text_value(written(arguments.values[0]));
}

Value unchanged(Interpreter&, Arguments& arguments) { return arguments.values[0]; }

Value escape(Interpreter& interpreter, Arguments& arguments) {
  static constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
  const Text text = written(arguments.values[0]);
  interpreter.spend(6 * text.size());
  Text out;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto* found = std::find_if(std::begin(kEscapes), std::end(kEscapes),
                                     [&](const auto& one) { return one.first == text.view()[at]; });
    out.append(found == std::end(kEscapes) ? text.view().substr(at, 1) : found->second,
               text.source_at(at));
  }
  return text_value(std::move(out));
}

Value otherwise(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  const bool is_missing = values[0].is_undefined() || (flag(values[2]) && !truth(values[0]));
  if (!is_missing) return values[0];
  return values[1].is_undefined() ? interpreter.text("") : values[1];
}

/// The number that all of a string is, without blanks around it.
template <typename Number>
bool parse(std::string_view text, Number& number) {
  const auto kept = strip(text, Ends::both);
  text = text.substr(kept.begin, kept.end - kept.begin);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

Value truncated(double number, const Value& otherwise) {
  if (!(std::fabs(number) < 0x1p63)) return otherwise;
  return {static_cast<int64_t>(number), otherwise.source};
}

Value whole(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  const Value otherwise =
      values[1].is_undefined() ? Value{int64_t{0}, interpreter.own()} : values[1];
  if (values[0].is<double>()) return truncated(values[0].as<double>(), otherwise);
  if (values[0].is_number()) return {whole_number(values[0]), values[0].source};
  if (!values[0].is_text()) return otherwise;
  int64_t number = 0;
  double real = 0;
  if (parse(values[0].text().view(), number)) return {number, values[0].text().source_at(0)};
  return parse(values[0].text().view(), real) ? truncated(real, otherwise) : otherwise;
}

Value real(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  double number = 0;
  if (values[0].is_number()) return {number_of(values[0]), values[0].source};
  if (values[0].is_text() && parse(values[0].text().view(), number))
    return {number, values[0].text().source_at(0)};
  return values[1].is_undefined() ? Value{0.0, interpreter.own()} : values[1];
}

Value absolute(Interpreter& interpreter, Arguments& arguments) {
  const auto& value = arguments.values[0];
  if (value.is<double>()) return {std::fabs(value.as<double>()), interpreter.own()};
  return whole_number(value) < 0
             ? operate(interpreter, BinaryOperator::subtract, {int64_t{0}}, value)
             : value;
}

Value rounded(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  const auto method = values[2].is_undefined() ? std::string("common") : text_of(values[2]).bytes();
  const auto digits = static_cast<int>(
      std::clamp<int64_t>(values[1].is_undefined() ? 0 : whole_number(values[1]), -20, 20));
  if (method == "common" && !values[0].is<double>())
    return {whole_number(values[0]), interpreter.own()};
  const double number = number_of(values[0]), scale = std::pow(10.0, digits);
  if (method == "ceil") return {std::ceil(number * scale) / scale, interpreter.own()};
  if (method == "floor") return {std::floor(number * scale) / scale, interpreter.own()};
  if (method != "common") throw Failure("round: expected common, ceil or floor");
  if (digits <= 0) return {std::nearbyint(number * scale) / scale, interpreter.own()};
  return {std::stod(fmt::format("{:.{}f}", number, digits)), interpreter.own()};
}

Value indented(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  Text text = written(values[0]);
  text.append("\n", interpreter.own());
  Text indent;
  if (values[1].is_text()) {
    indent = values[1].text();
  } else {
    const auto width =
        values[1].is_undefined() ? 4 : std::clamp<int64_t>(whole_number(values[1]), 0, 1000);
    indent.append(std::string(static_cast<size_t>(width), ' '), interpreter.own());
  }
  const auto lines = lines_of(text);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    interpreter.spend(indent.size() + 1);
    if (i > 0) out.append("\n", interpreter.own());
    const bool has_indent = i == 0 ? flag(values[2]) : flag(values[3]) || !lines[i].empty();
    if (has_indent) out.append(indent);
    out.append(lines[i]);
  }
  return text_value(std::move(out));
}

Builtins all() {
  return {
      {"tojson", {{"value", "ensure_ascii", "indent", "separators", "sort_keys"}, 0, tojson}},
      {"trim", {{"value", "chars"}, 0, trim}},
      {"upper", {{"value"}, 0, cased<Case::upper>}},
      {"lower", {{"value"}, 0, cased<Case::lower>}},
      {"title", {{"value"}, 0, title}},
      {"capitalize", {{"value"}, 0, cased<Case::capital>}},
      {"replace", {{"value", "old", "new", "count"}, 3, replace}},
      {"string", {{"value"}, 0, string}},
      {"safe", {{"value"}, 0, unchanged}},
      {"escape", {{"value"}, 0, escape}},
      {"e", {{"value"}, 0, escape}},
      {"default", {{"value", "default_value", "boolean"}, 0, otherwise}},
      {"d", {{"value", "default_value", "boolean"}, 0, otherwise}},
      {"int", {{"value", "default"}, 0, whole}},
      {"float", {{"value", "default"}, 0, real}},
      {"abs", {{"value"}, 1, absolute}},
      {"round", {{"value", "precision", "method"}, 1, rounded}},
      {"indent", {{"value", "width", "first", "blank"}, 0, indented}},
  };
}

}  // namespace text_filter
}  // namespace

const Builtins& text_filters() {
  static const Builtins kAll = text_filter::all();
  return kAll;
}

}  // namespace tessera::chat
