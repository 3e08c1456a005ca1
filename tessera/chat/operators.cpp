// Arithmetic, concatenation, slices, membership: as in Python, whole numbers within 64 bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/chat/characters.h"
#include "tessera/chat/interpreter.h"

namespace tessera::chat {
namespace {

bool is_whole(const Value& value) { return value.is<bool>() || value.is<int64_t>(); }

[[noreturn]] void refuse_operands(std::string_view symbol, const Value& left, const Value& right) {
  if (left.is_undefined()) refuse(left, fmt::format("a value to the left of {}", symbol));
  if (right.is_undefined()) refuse(right, fmt::format("a value to the right of {}", symbol));
  throw Failure(fmt::format("expected two numbers, or two strings or lists with +, got {} {} {}",
                            type_name(left), symbol, type_name(right)));
}

int64_t checked(bool overflows, const int64_t& result) {
  if (overflows) throw Failure("expected whole numbers of at most 64 bits");
  return result;
}

int64_t floor_divided(int64_t left, int64_t right) {
  if (right == -1) {
    int64_t result = 0;
    return checked(__builtin_sub_overflow(int64_t{0}, left, &result), result);
  }
  const int64_t quotient = left / right;
  return quotient - ((left % right != 0) && ((left < 0) != (right < 0)) ? 1 : 0);
}

int64_t to_the_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (base == 0 || base == 1) return base;
    if (base == -1) return exponent % 2 == 0 ? result : -result;
    int64_t next = 0;
    result = checked(__builtin_mul_overflow(result, base, &next), next);
  }
  return result;
}

/// Whole numbers; `what` is none of division and a negative power, which give fractions.
int64_t whole_result(BinaryOperator what, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (what) {
    case BinaryOperator::add:
      return checked(__builtin_add_overflow(left, right, &result), result);
    case BinaryOperator::subtract:
      return checked(__builtin_sub_overflow(left, right, &result), result);
    case BinaryOperator::multiply:
      return checked(__builtin_mul_overflow(left, right, &result), result);
    case BinaryOperator::floor_divide:
      return floor_divided(left, right);
    case BinaryOperator::modulo:
      return right == -1 ? 0 : left - right * floor_divided(left, right);
    default:
      return to_the_power(left, right);
  }
}

double real_result(BinaryOperator what, double left, double right) {
  switch (what) {
    case BinaryOperator::add:
      return left + right;
    case BinaryOperator::subtract:
      return left - right;
    case BinaryOperator::multiply:
      return left * right;
    case BinaryOperator::divide:
      return left / right;
    case BinaryOperator::floor_divide:
      return std::floor(left / right);
    case BinaryOperator::modulo:
      return left - right * std::floor(left / right);
    default:
      return std::pow(left, right);
  }
}

std::string_view symbol_of(BinaryOperator what) {
  static constexpr std::string_view kSymbols[] = {"+", "-",  "*", "/",   "//",
                                                  "%", "**", "~", "and", "or"};
  return kSymbols[static_cast<size_t>(what)];
}

Value repeated(Interpreter& interpreter, const Value& subject, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const size_t nodes = measure_of(subject).nodes;
  // The step limit is far below what overflows here.
  interpreter.spend(count > (int64_t{1} << 40) ? ~uint64_t{0}
                                               : nodes * static_cast<uint64_t>(count));
  Text text;
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) {
    if (subject.is_text()) {
      text.append(subject.text());
    } else {
      items.insert(items.end(), subject.list().items.begin(), subject.list().items.end());
    }
  }
  if (subject.is_text()) return text_value(std::move(text));
  return list_value(std::move(items), subject.source, subject.list().tuple);
}

Value concatenated(Interpreter& interpreter, const Value& left, const Value& right) {
  interpreter.spend_on(left);
  interpreter.spend_on(right);
  if (left.is_text()) {
    Text text = left.text();
    text.append(right.text());
    return text_value(std::move(text));
  }
  auto items = left.list().items;
  items.insert(items.end(), right.list().items.begin(), right.list().items.end());
  return list_value(std::move(items), left.source, left.list().tuple);
}

Value calculated(Interpreter& interpreter, BinaryOperator what, const Value& left,
                 const Value& right) {
  const bool divides = what == BinaryOperator::divide || what == BinaryOperator::floor_divide ||
                       what == BinaryOperator::modulo;
  if (divides && number_of(right) == 0) throw Failure("expected a divisor other than 0");
  const bool negative_power = what == BinaryOperator::power && number_of(right) < 0;
  if (is_whole(left) && is_whole(right) && what != BinaryOperator::divide && !negative_power) {
    return {whole_result(what, whole_number(left), whole_number(right)), interpreter.own()};
  }
  return {real_result(what, number_of(left), number_of(right)), interpreter.own()};
}

}  // namespace

Value operate(Interpreter& interpreter, BinaryOperator what, const Value& left,
              const Value& right) {
  if (what == BinaryOperator::concatenate) {
    interpreter.spend_on(left);
    interpreter.spend_on(right);
    Text text = written(left);
    text.append(written(right));
    return text_value(std::move(text));
  }
  if (left.is_number() && right.is_number()) return calculated(interpreter, what, left, right);
  const bool alike =
      (left.is_text() && right.is_text()) || (left.is<ListPtr>() && right.is<ListPtr>());
  if (what == BinaryOperator::add && alike) return concatenated(interpreter, left, right);
  if (what == BinaryOperator::multiply) {
    const auto is_sequence = [](const Value& value) {
      return value.is_text() || value.is<ListPtr>();
    };
    if (is_sequence(left) && is_whole(right))
      return repeated(interpreter, left, whole_number(right));
    if (is_sequence(right) && is_whole(left))
      return repeated(interpreter, right, whole_number(left));
  }
  refuse_operands(symbol_of(what), left, right);
}

bool contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) refuse(item, "a string to look for in a string");
    return container.text().view().find(item.text().view()) != std::string_view::npos;
  }
  if (container.is<DictPtr>()) return container.dict().find(item) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is<ListPtr>()) refuse(container, "a list, dict or string behind in");
  const auto& items = container.list().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& one) { return equal(one, item); });
}

namespace {

/// The indices that Python's slice takes of `size` items.
std::vector<size_t> sliced_indices(Interpreter& interpreter, int64_t size, const Value& begin,
                                   const Value& end, const Value& step) {
  const int64_t by = step.is_none() ? 1 : whole_number(step);
  if (by == 0) throw Failure("expected a step other than 0 in a slice");
  const auto place = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t at = whole_number(value);
    if (at < 0) at += size;
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t first = place(begin, by > 0 ? 0 : size - 1), last = place(end, by > 0 ? size : -1);
  const int64_t stride = std::clamp<int64_t>(by, -size - 1, size + 1);
  std::vector<size_t> indices;
  for (int64_t at = first; stride > 0 ? at < last : at > last; at += stride)
    indices.push_back(static_cast<size_t>(at));
  interpreter.spend(indices.size());
  return indices;
}

}  // namespace

Value sliced(Interpreter& interpreter, const Value& container, const Value& begin, const Value& end,
             const Value& step) {
  if (container.is<ListPtr>()) {
    const auto& items = container.list().items;
    std::vector<Value> taken;
    for (const auto i :
         sliced_indices(interpreter, static_cast<int64_t>(items.size()), begin, end, step))
      taken.push_back(items[i]);
    return list_value(std::move(taken), container.source, container.list().tuple);
  }
  if (!container.is_text()) refuse(container, "a list or string to slice");
  interpreter.spend_on(container);
  const auto& whole = container.text();
  const auto offsets = character_offsets(whole.view());
  Text text;
  for (const auto i :
       sliced_indices(interpreter, static_cast<int64_t>(offsets.size()) - 1, begin, end, step)) {
    text.append(whole, offsets[i], offsets[i + 1]);
  }
  return text_value(std::move(text));
}

}  // namespace tessera::chat
