// Methods of strings and dicts, as Python has them.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/chat/builtins.h"
#include "tessera/chat/characters.h"
#include "tessera/chat/string_operations.h"

namespace tessera::chat {
namespace {
namespace method {

template <Ends kEnds>
Value stripped(Interpreter&, Arguments& arguments) {
  return text_value(strip_text(text_of(arguments.values[0]), kEnds, arguments.values[1]));
}

Value texts(std::vector<Text> parts, Interpreter& interpreter) {
  std::vector<Value> values;
  for (auto& part : parts) values.push_back(text_value(std::move(part)));
  interpreter.spend(4 * values.size());
  return list_value(std::move(values), interpreter.own());
}

size_t most_splits(const Value& value) {
  const int64_t most = value.is_undefined() ? -1 : whole_number(value);
  return most < 0 ? std::string::npos : static_cast<size_t>(most);
}

Value split(Interpreter& interpreter, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  const auto& separator = arguments.values[1];
  const size_t most = most_splits(arguments.values[2]);
  if (separator.is_undefined() || separator.is_none())
    return texts(split_at_blanks(text, most), interpreter);
  return texts(split_at(text, text_of(separator).view(), most), interpreter);
}

Value split_from_right(Interpreter& interpreter, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  auto parts = split_at(text, text_of(arguments.values[1]).view(), std::string::npos);
  const size_t most = most_splits(arguments.values[2]);
  if (parts.size() - 1 > most) {
    const auto num_joined = static_cast<ptrdiff_t>(parts.size() - most);
    size_t end = 0;
    for (ptrdiff_t i = 0; i < num_joined; ++i) end += parts[static_cast<size_t>(i)].size();
    end += static_cast<size_t>(num_joined - 1) * text_of(arguments.values[1]).size();
    parts.erase(parts.begin() + 1, parts.begin() + num_joined);
    parts[0] = text.slice(0, end);
  }
  return texts(std::move(parts), interpreter);
}

Value split_lines(Interpreter& interpreter, Arguments& arguments) {
  return texts(lines_of(text_of(arguments.values[0])), interpreter);
}

/// startswith and endswith: of one string or of a tuple of them.
template <typename Has>
Value has_any(Arguments& arguments, const Has& has) {
  const auto text = text_of(arguments.values[0]).view();
  const auto& wanted = arguments.values[1];
  if (!wanted.is<ListPtr>()) return {has(text, text_of(wanted).view())};
  const auto& all = wanted.list().items;
  return {std::any_of(all.begin(), all.end(),
                      [&](const Value& one) { return has(text, text_of(one).view()); })};
}

Value starts_with(Interpreter&, Arguments& arguments) {
  return has_any(arguments, [](std::string_view text, std::string_view part) {
    return text.starts_with(part);
  });
}
Value ends_with(Interpreter&, Arguments& arguments) {
  return has_any(arguments,
                 [](std::string_view text, std::string_view part) { return text.ends_with(part); });
}

template <Case kCase>
Value cased(Interpreter&, Arguments& arguments) {
  return text_value(in_case(text_of(arguments.values[0]), kCase));
}

Value replace(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  return text_value(replaced(interpreter, text_of(values[0]), text_of(values[1]),
                             text_of(values[2]), most_splits(values[3])));
}

Value join(Interpreter& interpreter, Arguments& arguments) {
  for (const auto& item : items_of(arguments.values[1])) text_of(item);
  return text_value(
      joined(interpreter, items_of(arguments.values[1]), text_of(arguments.values[0])));
}

Value index_of(const Text& text, size_t at, SourceId own) {
  if (at == std::string_view::npos) return {int64_t{-1}, own};
  return {static_cast<int64_t>(num_characters(text.view().substr(0, at))), own};
}

Value find(Interpreter& interpreter, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  return index_of(text, text.view().find(text_of(arguments.values[1]).view()), interpreter.own());
}
Value find_from_right(Interpreter& interpreter, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  return index_of(text, text.view().rfind(text_of(arguments.values[1]).view()), interpreter.own());
}

Value count(Interpreter& interpreter, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  const auto part = text_of(arguments.values[1]).view();
  if (part.empty())
    return {static_cast<int64_t>(num_characters(text.view())) + 1, interpreter.own()};
  return {static_cast<int64_t>(split_at(text, part, std::string::npos).size()) - 1,
          interpreter.own()};
}

Value without_prefix(Interpreter&, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  const auto part = text_of(arguments.values[1]).view();
  return text_value(text.view().starts_with(part) ? text.slice(part.size(), text.size()) : text);
}
Value without_suffix(Interpreter&, Arguments& arguments) {
  const auto& text = text_of(arguments.values[0]);
  const auto part = text_of(arguments.values[1]).view();
  return text_value(text.view().ends_with(part) ? text.slice(0, text.size() - part.size()) : text);
}

template <bool (*kIs)(char32_t)>
Value all_are(Interpreter&, Arguments& arguments) {
  const auto text = text_of(arguments.values[0]).view();
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) {
    if (!kIs(character_at(text, at).code)) return {false};
  }
  return {!text.empty()};
}

bool is_alphanumeric(char32_t code) { return is_alpha(code) || is_digit(code); }

template <bool kKeys, bool kValues>
Value entries(Interpreter& interpreter, Arguments& arguments) {
  const auto& subject = arguments.values[0];
  std::vector<Value> parts;
  for (const auto& [key, value] : subject.dict().entries) {
    interpreter.spend(4);
    if (kKeys && kValues) {
      parts.push_back(list_value({key, value}, subject.source, true));
    } else {
      parts.push_back(kKeys ? key : value);
    }
  }
  return list_value(std::move(parts), subject.source);
}

Value get(Interpreter&, Arguments& arguments) {
  const Value* found = arguments.values[0].dict().find(arguments.values[1]);
  if (found != nullptr) return *found;
  return arguments.values[2].is_undefined() ? Value{None{}} : arguments.values[2];
}

Value copy(Interpreter&, Arguments& arguments) { return arguments.values[0]; }

Builtins of_text() {
  return {
      {"strip", {{"self", "chars"}, 1, stripped<Ends::both>}},
      {"lstrip", {{"self", "chars"}, 1, stripped<Ends::left>}},
      {"rstrip", {{"self", "chars"}, 1, stripped<Ends::right>}},
      {"split", {{"self", "sep", "maxsplit"}, 1, split}},
      {"rsplit", {{"self", "sep", "maxsplit"}, 2, split_from_right}},
      {"splitlines", {{"self"}, 1, split_lines}},
      {"startswith", {{"self", "prefix"}, 2, starts_with}},
      {"endswith", {{"self", "suffix"}, 2, ends_with}},
      {"upper", {{"self"}, 1, cased<Case::upper>}},
      {"lower", {{"self"}, 1, cased<Case::lower>}},
      {"title", {{"self"}, 1, cased<Case::title>}},
      {"capitalize", {{"self"}, 1, cased<Case::capital>}},
      {"replace", {{"self", "old", "new", "count"}, 3, replace}},
      {"join", {{"self", "iterable"}, 2, join}},
      {"find", {{"self", "sub"}, 2, find}},
      {"rfind", {{"self", "sub"}, 2, find_from_right}},
      {"count", {{"self", "sub"}, 2, count}},
      {"removeprefix", {{"self", "prefix"}, 2, without_prefix}},
      {"removesuffix", {{"self", "suffix"}, 2, without_suffix}},
      {"isalpha", {{"self"}, 1, all_are<is_alpha>}},
      {"isalnum", {{"self"}, 1, all_are<is_alphanumeric>}},
      {"isdigit", {{"self"}, 1, all_are<is_digit>}},
      {"isspace", {{"self"}, 1, all_are<is_space>}},
  };
}

Builtins of_dict() {
  return {
      {"items", {{"self"}, 1, entries<true, true>}},
      {"keys", {{"self"}, 1, entries<true, false>}},
      {"values", {{"self"}, 1, entries<false, true>}},
      {"get", {{"self", "key", "default"}, 2, get}},
      {"copy", {{"self"}, 1, copy}},
  };
}

}  // namespace method
}  // namespace

const Builtins& text_methods() {
  static const Builtins kAll = method::of_text();
  return kAll;
}

const Builtins& dict_methods() {
  static const Builtins kAll = method::of_dict();
  return kAll;
}

}  // namespace tessera::chat
