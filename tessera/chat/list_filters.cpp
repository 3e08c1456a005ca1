// Filters of lists and dicts.
#include <algorithm>

#include "tessera/base/quoted.h"
#include "tessera/chat/builtins.h"
#include "tessera/chat/string_operations.h"

namespace tessera::chat {
namespace {
namespace list_filter {

bool flag(const Value& value) { return !value.is_undefined() && truth(value); }

Value list(Interpreter& interpreter, std::vector<Value> items, bool generator = false) {
  interpreter.spend(4 * items.size());
  return list_value(std::move(items), interpreter.own(), /*tuple=*/false, generator);
}

/// What Jinja2 makes item by item when asked for it, and so is true even if there is none.
Value generator(Interpreter& interpreter, std::vector<Value> items) {
  return list(interpreter, std::move(items), /*generator=*/true);
}

Value length(Interpreter& interpreter, Arguments& arguments) {
  const auto& value = arguments.values[0];
  const auto size = [&]() -> size_t {
    if (value.is_undefined()) return 0;
    if (value.is_text()) return num_characters(value.text().view());
    if (value.is<DictPtr>()) return value.dict().entries.size();
    if (!value.is<ListPtr>()) refuse(value, "a list, dict or string");
    return value.list().items.size();
  }();
  return {static_cast<int64_t>(size), interpreter.own()};
}

Value first(Interpreter&, Arguments& arguments) {
  const auto items = items_of(arguments.values[0]);
  return items.empty() ? undefined("first: there is no item") : items.front();
}

Value last(Interpreter&, Arguments& arguments) {
  const auto items = items_of(arguments.values[0]);
  return items.empty() ? undefined("last: there is no item") : items.back();
}

Value as_list(Interpreter& interpreter, Arguments& arguments) {
  return list(interpreter, items_of(arguments.values[0]));
}

Value reversed(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.values[0].is_text())
    return sliced(interpreter, arguments.values[0], {None{}}, {None{}}, {int64_t{-1}});
  auto items = items_of(arguments.values[0]);
  std::reverse(items.begin(), items.end());
  return generator(interpreter, std::move(items));
}

Value join(Interpreter& interpreter, Arguments& arguments) {
  auto items = items_of(arguments.values[0]);
  const auto& attribute = arguments.values[2];
  if (!attribute.is_undefined()) {
    for (auto& item : items) item = attribute_path(interpreter, item, attribute);
  }
  return text_value(joined(interpreter, items, written(arguments.values[1])));
}

/// Of what is false there are none, as for None.
std::vector<Value> items_if_any(const Value& value) {
  return truth(value) ? items_of(value) : std::vector<Value>();
}

Value map(Interpreter& interpreter, Arguments& arguments) {
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") attribute = &value;
    if (name == "default") otherwise = &value;
  }
  auto items = items_if_any(arguments.values[0]);
  if (attribute == nullptr && arguments.values.size() < 2)
    throw Failure("map: expected a filter or attribute=");
  for (auto& item : items) {
    if (attribute != nullptr) {
      item = attribute_path(interpreter, item, *attribute);
      if (item.is_undefined() && otherwise != nullptr) item = *otherwise;
    } else {
      Arguments of_filter{{item}, arguments.named};
      of_filter.values.insert(of_filter.values.end(), arguments.values.begin() + 2,
                              arguments.values.end());
      item = interpreter.apply_filter(text_of(arguments.values[1]).view(), std::move(of_filter));
    }
  }
  return generator(interpreter, std::move(items));
}

/// select, reject and, with an attribute in front of the test, selectattr and rejectattr.
template <bool kWanted, bool kAttribute>
Value selected(Interpreter& interpreter, Arguments& arguments) {
  const size_t at_test = kAttribute ? 2 : 1;
  if (kAttribute && arguments.values.size() < 2)
    throw Failure("expected an attribute to select by");
  std::vector<Value> taken;
  for (auto& item : items_if_any(arguments.values[0])) {
    interpreter.spend(2);
    const Value subject =
        kAttribute ? attribute_path(interpreter, item, arguments.values[1]) : item;
    bool passes = truth(subject);
    if (arguments.values.size() > at_test) {
      Arguments of_test{{subject}, arguments.named};
      of_test.values.insert(of_test.values.end(), arguments.values.begin() + at_test + 1,
                            arguments.values.end());
      passes =
          interpreter.apply_test(text_of(arguments.values[at_test]).view(), std::move(of_test));
    }
    if (passes == kWanted) taken.push_back(std::move(item));
  }
  return generator(interpreter, std::move(taken));
}

/// What sort, unique, min and max compare: an attribute, strings in lower case unless asked otherwise.
Value key_of(Interpreter& interpreter, const Value& item, const Value& attribute,
             bool case_sensitive) {
  Value key = attribute.is_undefined() || attribute.is_none()
                  ? item
                  : attribute_path(interpreter, item, attribute);
  if (!case_sensitive && key.is_text()) key = text_value(in_case(key.text(), Case::lower));
  return key;
}

using Keyed = std::vector<std::pair<Value, Value>>;

Keyed with_keys(Interpreter& interpreter, const Value& of, const Value& attribute,
                const Value& case_sensitive) {
  Keyed keyed;
  for (auto& item : items_of(of)) {
    auto key = key_of(interpreter, item, attribute, flag(case_sensitive));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return keyed;
}

void sort_by_key(Interpreter& interpreter, Keyed& keyed, bool descending) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    interpreter.spend(std::min(measure_of(a.first).nodes, measure_of(b.first).nodes));
    return descending ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  });
}

Value sorted(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  auto keyed = with_keys(interpreter, values[0], values[3], values[2]);
  sort_by_key(interpreter, keyed, flag(values[1]));
  std::vector<Value> items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return list(interpreter, std::move(items));
}

Value unique(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  std::vector<Value> keys, items;
  for (auto& [key, item] : with_keys(interpreter, values[0], values[2], values[1])) {
    for (const auto& known : keys)
      interpreter.spend(std::min(measure_of(known).nodes, measure_of(key).nodes));
    if (std::any_of(keys.begin(), keys.end(),
                    [&, &wanted = key](const Value& known) { return equal(known, wanted); }))
      continue;
    keys.push_back(key);
    items.push_back(item);
  }
  return generator(interpreter, std::move(items));
}

template <int kSign>
Value extreme(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  const auto keyed = with_keys(interpreter, values[0], values[2], values[1]);
  if (keyed.empty()) return undefined("there is no item to choose from");
  const auto* best = &keyed[0];
  for (const auto& candidate : keyed) {
    if (compare(candidate.first, best->first) * kSign > 0) best = &candidate;
  }
  return best->second;
}

Value sum(Interpreter& interpreter, Arguments& arguments) {
  Value total = arguments.values[2].is_undefined() ? Value{int64_t{0}, interpreter.own()}
                                                   : arguments.values[2];
  for (const auto& item : items_of(arguments.values[0])) {
    const auto& attribute = arguments.values[1];
    total = operate(interpreter, BinaryOperator::add, total,
                    attribute.is_undefined() ? item : attribute_path(interpreter, item, attribute));
  }
  return total;
}

Value batch(Interpreter& interpreter, Arguments& arguments) {
  const auto size = whole_number(arguments.values[1]);
  if (size < 1 || size > 1'000'000) throw Failure("batch: expected a size from 1 to 1000000");
  std::vector<Value> rows, row;
  for (auto& item : items_of(arguments.values[0])) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size)
      rows.push_back(list(interpreter, std::exchange(row, {})));
  }
  const auto& fill = arguments.values[2];
  if (!row.empty() && !fill.is_undefined()) {
    interpreter.spend(4 * static_cast<uint64_t>(size));
    row.resize(static_cast<size_t>(size), fill);
  }
  if (!row.empty()) rows.push_back(list(interpreter, std::move(row)));
  return generator(interpreter, std::move(rows));
}

Value items(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.values[0].is_undefined()) return generator(interpreter, {});
  if (!arguments.values[0].is<DictPtr>()) refuse(arguments.values[0], "a dict");
  return generator(interpreter,
                   items_of(run_builtin(interpreter, "items", dict_methods().at("items"),
                                        std::move(arguments))));
}

Value sorted_items(Interpreter& interpreter, Arguments& arguments) {
  const auto& values = arguments.values;
  if (!values[0].is<DictPtr>()) refuse(values[0], "a dict");
  const auto by = values[2].is_undefined() ? std::string("key") : text_of(values[2]).bytes();
  if (by != "key" && by != "value")
    throw Failure("dictsort: expected key or value to sort by, got " + quoted(by));
  Keyed keyed;
  for (const auto& [key, value] : values[0].dict().entries) {
    keyed.emplace_back(key_of(interpreter, by == "key" ? key : value, {}, flag(values[1])),
                       list_value({key, value}, values[0].source, true));
  }
  sort_by_key(interpreter, keyed, flag(values[3]));
  std::vector<Value> pairs;
  for (auto& [key, pair] : keyed) pairs.push_back(std::move(pair));
  return list(interpreter, std::move(pairs));
}

Value attribute(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.attribute(arguments.values[0], text_of(arguments.values[1]).view());
}

Builtins all() {
  return {
      {"length", {{"value"}, 0, length}},
      {"count", {{"value"}, 0, length}},
      {"first", {{"value"}, 0, first}},
      {"last", {{"value"}, 0, last}},
      {"list", {{"value"}, 0, as_list}},
      {"reverse", {{"value"}, 0, reversed}},
      {"join", {{"value", "d", "attribute"}, 0, join}},
      {"map", {{"value", "..."}, 0, map}},
      {"select", {{"value", "..."}, 0, selected<true, false>}},
      {"reject", {{"value", "..."}, 0, selected<false, false>}},
      {"selectattr", {{"value", "..."}, 0, selected<true, true>}},
      {"rejectattr", {{"value", "..."}, 0, selected<false, true>}},
      {"sort", {{"value", "reverse", "case_sensitive", "attribute"}, 0, sorted}},
      {"unique", {{"value", "case_sensitive", "attribute"}, 0, unique}},
      {"min", {{"value", "case_sensitive", "attribute"}, 0, extreme<-1>}},
      {"max", {{"value", "case_sensitive", "attribute"}, 0, extreme<1>}},
      {"sum", {{"value", "attribute", "start"}, 0, sum}},
      {"batch", {{"value", "linecount", "fill_with"}, 2, batch}},
      {"items", {{"value"}, 0, items}},
      {"dictsort", {{"value", "case_sensitive", "by", "reverse"}, 0, sorted_items}},
      {"attr", {{"value", "name"}, 2, attribute}},
  };
}

}  // namespace list_filter
}  // namespace

const Builtins& list_filters() {
  static const Builtins kAll = list_filter::all();
  return kAll;
}

}  // namespace tessera::chat
