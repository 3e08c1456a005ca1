// x is NAME
#include "tessera/chat/builtins.h"
#include "tessera/chat/characters.h"

namespace tessera::chat {
namespace {
namespace test {

template <bool (*kTest)(const Value&)>
Value of_type(Interpreter&, Arguments& arguments) {
  return {kTest(arguments.values[0])};
}

template <typename Compare>
Value two(Interpreter& interpreter, Arguments& arguments, const Compare& compare) {
  const auto &left = arguments.values[0], &right = arguments.values[1];
  interpreter.spend(measure_of(left).nodes + measure_of(right).nodes);
  return {compare(left, right)};
}

Value is_equal(Interpreter& i, Arguments& a) { return two(i, a, equal); }
Value is_unequal(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return !equal(x, y); });
}
Value is_less(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return compare(x, y) < 0; });
}
Value is_at_most(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return compare(x, y) <= 0; });
}
Value is_greater(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return compare(x, y) > 0; });
}
Value is_at_least(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return compare(x, y) >= 0; });
}
Value is_in(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) { return contains(y, x); });
}
Value is_divisible(Interpreter& i, Arguments& a) {
  return two(i, a, [](const Value& x, const Value& y) {
    const auto by = whole_number(y);
    if (by == 0) throw Failure("divisibleby: expected a number other than 0");
    return by == -1 || whole_number(x) % by == 0;
  });
}

template <typename T>
bool holds(const Value& value) {
  return value.is<T>();
}
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_true(const Value& value) { return value.is<bool>() && value.as<bool>(); }
bool is_false(const Value& value) { return value.is<bool>() && !value.as<bool>(); }
bool is_odd(const Value& value) { return whole_number(value) % 2 != 0; }
bool is_even(const Value& value) { return whole_number(value) % 2 == 0; }
bool is_sequence(const Value& value) {
  return value.is_text() || value.is<ListPtr>() || value.is<DictPtr>() || value.is_undefined();
}
bool is_iterable(const Value& value) { return is_sequence(value) || value.is<LoopPtr>(); }
template <bool kUpper>
bool is_in_case(const Value& value) {
  std::string out;
  bool has_cased = false;
  const auto text = text_of(value).view();
  for (size_t at = 0; at < text.size(); at += character_at(text, at).bytes) {
    const auto code = character_at(text, at).code;
    has_cased = has_cased || is_cased(code);
    kUpper ? append_upper(out, code) : append_lower(out, code);
  }
  return has_cased && out == text;
}

Builtins all() {
  return {
      {"defined", {{"value"}, 0, of_type<is_defined>}},
      {"undefined", {{"value"}, 0, of_type<holds<Undefined>>}},
      {"none", {{"value"}, 0, of_type<holds<None>>}},
      {"string", {{"value"}, 0, of_type<holds<TextPtr>>}},
      {"mapping", {{"value"}, 0, of_type<holds<DictPtr>>}},
      {"sequence", {{"value"}, 0, of_type<is_sequence>}},
      {"iterable", {{"value"}, 0, of_type<is_iterable>}},
      {"number", {{"value"}, 0, of_type<is_number>}},
      {"integer", {{"value"}, 0, of_type<holds<int64_t>>}},
      {"float", {{"value"}, 0, of_type<holds<double>>}},
      {"boolean", {{"value"}, 0, of_type<holds<bool>>}},
      {"true", {{"value"}, 0, of_type<is_true>}},
      {"false", {{"value"}, 0, of_type<is_false>}},
      {"callable", {{"value"}, 0, of_type<holds<FunctionPtr>>}},
      {"odd", {{"value"}, 0, of_type<is_odd>}},
      {"even", {{"value"}, 0, of_type<is_even>}},
      {"upper", {{"value"}, 0, of_type<is_in_case<true>>}},
      {"lower", {{"value"}, 0, of_type<is_in_case<false>>}},
      {"divisibleby", {{"value", "num"}, 2, is_divisible}},
      {"in", {{"value", "seq"}, 0, is_in}},
      {"eq", {{"value", "other"}, 0, is_equal}},
      {"equalto", {{"value", "other"}, 0, is_equal}},
      {"==", {{"value", "other"}, 0, is_equal}},
      {"ne", {{"value", "other"}, 0, is_unequal}},
      {"!=", {{"value", "other"}, 0, is_unequal}},
      {"lt", {{"value", "other"}, 0, is_less}},
      {"lessthan", {{"value", "other"}, 0, is_less}},
      {"<", {{"value", "other"}, 0, is_less}},
      {"le", {{"value", "other"}, 0, is_at_most}},
      {"<=", {{"value", "other"}, 0, is_at_most}},
      {"gt", {{"value", "other"}, 0, is_greater}},
      {"greaterthan", {{"value", "other"}, 0, is_greater}},
      {">", {{"value", "other"}, 0, is_greater}},
      {"ge", {{"value", "other"}, 0, is_at_least}},
      {">=", {{"value", "other"}, 0, is_at_least}},
  };
}

}  // namespace test
}  // namespace

const Builtins& tests() {
  static const Builtins kAll = test::all();
  return kAll;
}

}  // namespace tessera::chat
