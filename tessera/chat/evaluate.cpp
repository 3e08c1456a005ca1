// Expressions.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/quoted.h"
#include "tessera/chat/builtins.h"
#include "tessera/chat/characters.h"
#include "tessera/chat/interpreter.h"

namespace tessera::chat {

Value Interpreter::evaluate(const Expression& expression) {
  spend(1);
  if (++depth_ > limits_.depth) {
    throw Failure(
        fmt::format("expected at most {} calls and expressions within one another", limits_.depth));
  }
  line_ = expression.line;
  auto value = evaluate_node(expression);
  --depth_;
  return value;
}

Value Interpreter::evaluate_node(const Expression& expression) {
  const auto& node = expression.node;
  if (const auto* literal = std::get_if<StringLiteral>(&node)) {
    spend(literal->text.size());
    return text(literal->text);
  }
  if (const auto* named = std::get_if<Name>(&node)) return name(named->name);
  if (const auto* attribute_of = std::get_if<Attribute>(&node)) {
    return attribute(evaluate(*attribute_of->object), attribute_of->name);
  }
  if (const auto* item_of = std::get_if<Item>(&node)) {
    const auto object = evaluate(*item_of->object);
    return item(object, evaluate(*item_of->key));
  }
  if (const auto* operation = std::get_if<Binary>(&node)) return binary(*operation);
  if (const auto* chain = std::get_if<Compare>(&node)) return compare_chain(*chain);
  if (const auto* operation = std::get_if<Unary>(&node)) return unary(*operation);
  if (const auto* called = std::get_if<Call>(&node)) return call_node(*called);
  if (const auto* filtered = std::get_if<Filter>(&node)) return filter(*filtered);
  if (const auto* part = std::get_if<Slice>(&node)) return slice(*part);
  if (const auto* tested = std::get_if<Test>(&node)) {
    auto subject = evaluate(*tested->subject);
    auto arguments = evaluate(tested->arguments);
    arguments.values.insert(arguments.values.begin(), std::move(subject));
    return {apply_test(tested->name, std::move(arguments)), own_};
  }
  if (const auto* choice = std::get_if<Conditional>(&node)) {
    if (truth(evaluate(*choice->condition))) return evaluate(*choice->yes);
    if (choice->no) return evaluate(*choice->no);
    return undefined("the inline if has no else and its condition is false");
  }
  if (const auto* list = std::get_if<ListLiteral>(&node)) {
    std::vector<Value> items;
    for (const auto& part : list->items) items.push_back(evaluate(*part));
    return list_value(std::move(items), own_, list->tuple);
  }
  if (const auto* dict = std::get_if<DictLiteral>(&node)) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [key, value] : dict->entries) {
      auto made = evaluate(*key);
      entries.emplace_back(std::move(made), evaluate(*value));
    }
    return dict_value(std::move(entries), own_);
  }
  if (const auto* number = std::get_if<int64_t>(&node)) return {*number, own_};
  if (const auto* number = std::get_if<double>(&node)) return {*number, own_};
  const auto constant = std::get<Constant>(node);
  return constant == Constant::none ? Value{None{}, own_} : Value{constant == Constant::yes, own_};
}

Value Interpreter::name(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return found->second;
    spend(1);
  }
  return undefined(fmt::format("{} is undefined", quoted(name)));
}

Value Interpreter::unary(const Unary& node) {
  const auto operand = evaluate(*node.operand);
  if (node.what == UnaryOperator::negation) return {!truth(operand), own_};
  const auto zero = Value{int64_t{0}, own_};
  return operate(*this,
                 node.what == UnaryOperator::minus ? BinaryOperator::subtract : BinaryOperator::add,
                 zero, operand);
}

Value Interpreter::binary(const Binary& node) {
  auto left = evaluate(*node.left);
  if (node.what == BinaryOperator::conjunction) return truth(left) ? evaluate(*node.right) : left;
  if (node.what == BinaryOperator::disjunction) return truth(left) ? left : evaluate(*node.right);
  return operate(*this, node.what, left, evaluate(*node.right));
}

Value Interpreter::compare_chain(const Compare& node) {
  auto left = evaluate(*node.first);
  for (const auto& [what, other] : node.others) {
    auto right = evaluate(*other);
    if (!compare_two(what, left, right)) return {false, own_};
    left = std::move(right);
  }
  return {true, own_};
}

bool Interpreter::compare_two(Comparison what, const Value& left, const Value& right) {
  spend(std::min(measure_of(left).nodes, measure_of(right).nodes));
  switch (what) {
    case Comparison::equal:
      return equal(left, right);
    case Comparison::not_equal:
      return !equal(left, right);
    case Comparison::less:
      return compare(left, right) < 0;
    case Comparison::less_equal:
      return compare(left, right) <= 0;
    case Comparison::greater:
      return compare(left, right) > 0;
    case Comparison::greater_equal:
      return compare(left, right) >= 0;
    case Comparison::in:
    case Comparison::not_in:
      break;
  }
  spend_on(right);
  return contains(right, left) == (what == Comparison::in);
}

Arguments Interpreter::evaluate(const ArgumentList& list) {
  Arguments arguments;
  for (const auto& value : list.values) arguments.values.push_back(evaluate(*value));
  for (const auto& [name, value] : list.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Interpreter::call_node(const Call& node) {
  const auto callee = evaluate(*node.callee);
  return call(callee, evaluate(node.arguments));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  if (!callee.is<FunctionPtr>()) refuse(callee, "a function to call");
  return callee.as<FunctionPtr>()->call(*this, std::move(arguments));
}

Value Interpreter::filter(const Filter& node) {
  auto subject = node.subject ? evaluate(*node.subject) : text_value(*block_text_);
  auto arguments = evaluate(node.arguments);
  arguments.values.insert(arguments.values.begin(), std::move(subject));
  return apply_filter(node.name, std::move(arguments));
}

Value Interpreter::apply_filter(std::string_view name, Arguments arguments) {
  for (const auto& value : arguments.values) spend_on(value);
  for (const auto* table : {&text_filters(), &list_filters()}) {
    if (const auto found = table->find(name); found != table->end()) {
      return run_builtin(*this, name, found->second, std::move(arguments));
    }
  }
  throw Failure(fmt::format("expected a filter that is known, got {}", quoted(std::string(name))));
}

bool Interpreter::apply_test(std::string_view name, Arguments arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) {
    throw Failure(fmt::format("expected a test that is known, got {}", quoted(std::string(name))));
  }
  return truth(run_builtin(*this, name, found->second, std::move(arguments)));
}

namespace {

Value loop_attribute(const Loop& loop, std::string_view name, SourceId own) {
  const auto size = static_cast<int64_t>(loop.items->items.size()),
             index = static_cast<int64_t>(loop.index);
  if (name == "index") return {index + 1, own};
  if (name == "index0") return {index, own};
  if (name == "revindex") return {size - index, own};
  if (name == "revindex0") return {size - index - 1, own};
  if (name == "first") return {index == 0, own};
  if (name == "last") return {index + 1 == size, own};
  if (name == "length") return {size, own};
  if (name == "depth") return {int64_t{1}, own};  // of recursive loops only
  if (name == "depth0") return {int64_t{0}, own};
  if (name == "previtem")
    return index > 0 ? loop.items->items[loop.index - 1] : undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items->items[loop.index + 1]
                            : undefined("there is no next item");
  if (name == "cycle") {
    return function_value("cycle", [at = loop.index](Interpreter&, Arguments arguments) {
      if (arguments.values.empty()) throw Failure("loop.cycle: expected values");
      return arguments.values[at % arguments.values.size()];
    });
  }
  return undefined(fmt::format("loop has no attribute {}", quoted(std::string(name))));
}

/// A method with the object that it is of.
Value bound(const Value& object, std::string_view name, const Builtin& method) {
  return function_value(
      std::string(name),
      [object, &method, name = std::string(name)](Interpreter& of, Arguments arguments) {
        arguments.values.insert(arguments.values.begin(), object);
        for (const auto& value : arguments.values) of.spend_on(value);
        return run_builtin(of, name, method, std::move(arguments));
      },
      &object);
}

/// Methods by which Python changes lists and dicts: the sandbox of transformers refuses them.
bool changes_in_place(const Value& object, std::string_view name) {
  static const std::vector<std::string_view> kOfLists = {"append", "clear",  "extend",  "insert",
                                                         "pop",    "remove", "reverse", "sort"};
  static const std::vector<std::string_view> kOfDicts = {"clear", "pop", "popitem", "setdefault",
                                                         "update"};
  const auto& names = object.is<DictPtr>() ? kOfDicts : kOfLists;
  return (object.is<DictPtr>() || object.is<ListPtr>()) &&
         std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined())
    refuse(object, fmt::format("a value with {}", quoted(std::string(name))));
  if (object.is<Namespace*>()) {
    const auto& attributes = object.as<Namespace*>()->attributes;
    spend(attributes.size());
    for (const auto& [key, value] : attributes) {
      if (key == name) return value;
    }
    return undefined(fmt::format("the namespace has no attribute {}", quoted(std::string(name))));
  }
  if (object.is<LoopPtr>()) return loop_attribute(*object.as<LoopPtr>(), name, own_);
  const auto* methods = object.is_text()       ? &text_methods()
                        : object.is<DictPtr>() ? &dict_methods()
                                               : nullptr;
  if (methods != nullptr) {
    if (const auto found = methods->find(name); found != methods->end())
      return bound(object, found->first, found->second);
  }
  if (object.is<DictPtr>()) {
    spend(object.dict().entries.size());
    if (const Value* value = object.dict().find(name)) return *value;
  }
  if (changes_in_place(object, name)) {
    throw Failure(
        fmt::format("expected a template that changes no list or dict in place, got .{}", name));
  }
  return undefined(
      fmt::format("the {} has no attribute {}", type_name(object), quoted(std::string(name))));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) refuse(object, "a value with items");
  spend(1);
  if (object.is<DictPtr>()) {
    spend(object.dict().entries.size());
    if (const Value* value = object.dict().find(key)) return *value;
    if (key.is_text() && dict_methods().contains(key.text().view()))
      return attribute(object, key.text().view());
    return undefined(fmt::format("the dict has no key {}", quoted(written(key).bytes())));
  }
  if (key.is_text()) return attribute(object, key.text().view());
  const bool is_number = key.is<int64_t>() || key.is<bool>();
  if (object.is<ListPtr>() && is_number) {
    const auto& items = object.list().items;
    const auto size = static_cast<int64_t>(items.size());
    const auto at = whole_number(key) < 0 ? whole_number(key) + size : whole_number(key);
    if (at >= 0 && at < size) return items[static_cast<size_t>(at)];
    return undefined(fmt::format("the list has no item {}, but {}", whole_number(key), size));
  }
  if (object.is_text() && is_number) {
    spend(object.text().size());
    const auto offsets = character_offsets(object.text().view());
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    const auto at =
        static_cast<size_t>(whole_number(key) < 0 ? whole_number(key) + size : whole_number(key));
    if (at + 1 < offsets.size())
      return text_value(object.text().slice(offsets[at], offsets[at + 1]));
    return undefined(
        fmt::format("the string has no character {}, but {}", whole_number(key), size));
  }
  return undefined(fmt::format("the {} has no such item", type_name(object)));
}

Value Interpreter::slice(const Slice& node) {
  const auto object = evaluate(*node.object);
  const auto part = [&](const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value{None{}};
  };
  const auto begin = part(node.begin), end = part(node.end), step = part(node.step);
  return sliced(*this, object, begin, end, step);
}

}  // namespace tessera::chat
