#include "tessera/chat/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/chat/characters.h"

namespace tessera::chat {
namespace {

constexpr size_t kMaxNodes = size_t{1} << 24;
constexpr int kMaxValueDepth = 100;

void include(Measure& whole, const Value& part) {
  const auto measure = measure_of(part);
  whole.nodes += measure.nodes;
  whole.depth = std::max(whole.depth, measure.depth + 1);
  if (whole.nodes > kMaxNodes) throw Failure("a list or dict of the template grows too large");
  if (whole.depth > kMaxValueDepth) {
    throw Failure(fmt::format("a value nests lists or dicts more than {} deep", kMaxValueDepth));
  }
}

}  // namespace

Measure measure_of(const Value& value) {
  if (value.is_text()) return {1 + value.text().size(), 0};
  if (value.is<ListPtr>()) return value.list().measure;
  if (value.is<DictPtr>()) return value.dict().measure;
  if (value.is<FunctionPtr>()) return value.as<FunctionPtr>()->measure;
  if (value.is<LoopPtr>()) return value.as<LoopPtr>()->items->measure;
  return {};
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.is_text() && name.text().view() == key) return &value;
  }
  return nullptr;
}

Value undefined(std::string why) {
  return {Undefined{std::make_shared<const std::string>(std::move(why))}};
}

Value text_value(Text text) { return {std::make_shared<const Text>(std::move(text))}; }

Value list_value(std::vector<Value> items, SourceId source, bool tuple, bool generator) {
  auto list = std::make_shared<List>();
  for (const auto& item : items) include(list->measure, item);
  list->items = std::move(items);
  list->tuple = tuple;
  list->generator = generator;
  return {ListPtr(std::move(list)), source};
}

Value dict_value(std::vector<std::pair<Value, Value>> entries, SourceId source, int message) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : entries) {
    include(dict->measure, key);
    include(dict->measure, value);
  }
  dict->entries = std::move(entries);
  dict->message = message;
  return {DictPtr(std::move(dict)), source};
}

Value function_value(std::string name, std::function<Value(Interpreter&, Arguments)> call,
                     const Value* object) {
  Measure measure;
  if (object != nullptr) include(measure, *object);
  return {std::make_shared<const Function>(Function{std::move(name), std::move(call), measure})};
}

std::string type_name(const Value& value) {
  static constexpr const char* kNames[] = {"undefined", "None", "bool",    "int",
                                           "float",     "str",  "list",    "dict",
                                           "namespace", "loop", "function"};
  if (value.is<ListPtr>() && value.list().tuple) return "tuple";
  return kNames[value.data.index()];
}

void refuse(const Value& value, std::string_view expected) {
  if (value.is_undefined()) {
    const auto& why = value.as<Undefined>().why;
    throw Failure(fmt::format("{}, expected {}", why ? *why : "a value is missing", expected));
  }
  throw Failure(fmt::format("expected {}, got a value of type {}", expected, type_name(value)));
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return number_of(value) != 0;
  if (value.is_text()) return !value.text().empty();
  if (value.is<ListPtr>()) return value.list().generator || !value.list().items.empty();
  if (value.is<DictPtr>()) return !value.dict().entries.empty();
  return true;
}

namespace {

bool equal_entries(const Dict& left, const Dict& right) {
  return left.entries.size() == right.entries.size() &&
         std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
           const Value* other = right.find(entry.first);
           return other != nullptr && equal(entry.second, *other);
         });
}

int order(auto left, auto right) { return left < right ? -1 : right < left ? 1 : 0; }

bool is_whole_number(const Value& value) { return value.is<bool>() || value.is<int64_t>(); }

}  // namespace

bool equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (is_whole_number(left) && is_whole_number(right))
      return whole_number(left) == whole_number(right);
    return number_of(left) == number_of(right);
  }
  if (left.data.index() != right.data.index()) return false;
  if (left.is_text()) return left.text().view() == right.text().view();
  if (left.is<ListPtr>()) {
    const auto &a = left.list(), &b = right.list();
    return a.tuple == b.tuple &&
           std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
  }
  if (left.is<DictPtr>()) return equal_entries(left.dict(), right.dict());
  if (left.is<Namespace*>()) return left.as<Namespace*>() == right.as<Namespace*>();
  return left.is_undefined() || left.is_none();
}

int compare(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    if (is_whole_number(left) && is_whole_number(right))
      return order(whole_number(left), whole_number(right));
    return order(number_of(left), number_of(right));
  }
  // Bytes of valid UTF-8 are in the order of its characters.
  if (left.is_text() && right.is_text()) return order(left.text().view(), right.text().view());
  if (left.is<ListPtr>() && right.is<ListPtr>() && left.list().tuple == right.list().tuple) {
    const auto &a = left.list().items, &b = right.list().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal(a[i], b[i])) return compare(a[i], b[i]);
    }
    return order(a.size(), b.size());
  }
  if (left.is_undefined()) refuse(left, "a value that can be compared");
  if (right.is_undefined()) refuse(right, "a value that can be compared");
  throw Failure(fmt::format("expected two numbers, strings or lists to compare, got {} and {}",
                            type_name(left), type_name(right)));
}

double number_of(const Value& value) {
  if (value.is<bool>()) return value.as<bool>() ? 1 : 0;
  if (value.is<int64_t>()) return static_cast<double>(value.as<int64_t>());
  if (value.is<double>()) return value.as<double>();
  refuse(value, "a number");
}

int64_t whole_number(const Value& value) {
  if (value.is<bool>()) return value.as<bool>() ? 1 : 0;
  if (!value.is<int64_t>()) refuse(value, "a whole number");
  return value.as<int64_t>();
}

const Text& text_of(const Value& value) {
  if (!value.is_text()) refuse(value, "a string");
  return value.text();
}

std::vector<Value> items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is<ListPtr>()) return value.list().items;
  std::vector<Value> items;
  if (value.is<DictPtr>()) {
    for (const auto& [key, unused] : value.dict().entries) items.push_back(key);
  } else if (value.is_text()) {
    const auto offsets = character_offsets(value.text().view());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.push_back(text_value(value.text().slice(offsets[i], offsets[i + 1])));
    }
  } else {
    refuse(value, "a list, dict or string");
  }
  return items;
}

Text written(const Value& value) {
  if (value.is_text()) return value.text();
  Text out;
  if (!value.is_undefined()) append_repr(out, value);
  return out;
}

namespace {

/// repr of a string: in single quotes, in double ones if only single ones occur in it.
void append_quoted(Text& out, const Text& text, SourceId frame) {
  const bool has_single = text.view().find('\'') != std::string_view::npos;
  const bool has_double = text.view().find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.append({&quote, 1}, frame);
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = character_at(text.view(), at);
    const auto source = text.source_at(at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out.append("\\", source);
      out.append(text, at, at + bytes);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", source);
    } else if (is_printable(code)) {
      out.append(text, at, at + bytes);
    } else {
      const auto value = static_cast<uint32_t>(code);
      out.append(value < 0x100     ? fmt::format("\\x{:02x}", value)
                 : value < 0x10000 ? fmt::format("\\u{:04x}", value)
                                   : fmt::format("\\U{:08x}", value),
                 source);
    }
    at += bytes;
  }
  out.append({&quote, 1}, frame);
}

void append_items(Text& out, const Value& value) {
  const auto& list = value.list();
  out.append(list.tuple ? "(" : "[", value.source);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", value.source);
    append_repr(out, list.items[i]);
  }
  if (list.tuple && list.items.size() == 1) out.append(",", value.source);
  out.append(list.tuple ? ")" : "]", value.source);
}

void append_entries(Text& out, const Value& value) {
  out.append("{", value.source);
  bool first = true;
  for (const auto& [key, entry] : value.dict().entries) {
    if (!first) out.append(", ", value.source);
    first = false;
    append_repr(out, key);
    out.append(": ", value.source);
    append_repr(out, entry);
  }
  out.append("}", value.source);
}

}  // namespace

void append_repr(Text& out, const Value& value) {
  if (value.is_text())
    return append_quoted(out, value.text(), value.text().source_at(0, value.source));
  if (value.is<ListPtr>()) return append_items(out, value);
  if (value.is<DictPtr>()) return append_entries(out, value);
  if (value.is_none()) return out.append("None", value.source);
  if (value.is<bool>()) return out.append(value.as<bool>() ? "True" : "False", value.source);
  if (value.is<int64_t>()) return out.append(fmt::format("{}", value.as<int64_t>()), value.source);
  if (value.is<double>()) return out.append(float_text(value.as<double>()), value.source);
  if (value.is_undefined()) return out.append("Undefined", value.source);
  refuse(value, "a value that can be written");
}

}  // namespace tessera::chat
