// The functions that every template finds, as transformers gives them: range, dict, namespace,
// raise_exception, strftime_now.
#include <fmt/format.h>

#include <ctime>

#include "tessera/base/text.h"
#include "tessera/chat/builtins.h"

namespace tessera::chat {
namespace {
namespace function {

Value range(Interpreter& interpreter, Arguments& arguments) {
  static constexpr uint64_t kMost = 100'000;  // Jinja2's sandbox
  const auto& given = arguments.values;
  const bool has_begin = !given[1].is_undefined();
  const int64_t begin = has_begin ? whole_number(given[0]) : 0;
  const int64_t end = whole_number(has_begin ? given[1] : given[0]);
  const int64_t step = given[2].is_undefined() ? 1 : whole_number(given[2]);
  if (step == 0) throw Failure("range: expected a step other than 0");
  if ((step > 0 && begin >= end) || (step < 0 && begin <= end))
    return list_value({}, interpreter.own());
  // Differences of 64-bit numbers do not overflow when they are taken without signs.
  const auto distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                 : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const auto stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = (distance - 1) / stride + 1;
  if (count > kMost) throw Failure(fmt::format("range: expected at most {} numbers", kMost));
  interpreter.spend(4 * count);
  std::vector<Value> numbers;
  for (uint64_t i = 0; i < count; ++i) {
    numbers.push_back(
        {static_cast<int64_t>(static_cast<uint64_t>(begin) + i * static_cast<uint64_t>(step)),
         interpreter.own()});
  }
  return list_value(std::move(numbers), interpreter.own());
}

Value dict(Interpreter& interpreter, Arguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  int message = -1;
  const auto& from = arguments.values[0];
  interpreter.spend_on(from);
  if (from.is<DictPtr>()) {
    entries = from.dict().entries;
    message = from.dict().message;
  } else if (!from.is_undefined()) {
    for (const auto& pair : items_of(from)) {
      const auto parts = items_of(pair);
      if (parts.size() != 2) refuse(pair, "a pair of key and value");
      entries.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    auto entry = entries.begin();
    while (entry != entries.end() &&
           !(entry->first.is_text() && entry->first.text().view() == name))
      ++entry;
    interpreter.spend(entries.size());
    if (entry != entries.end()) {
      entry->second = value;
    } else {
      entries.emplace_back(interpreter.text(name), value);
    }
  }
  return dict_value(std::move(entries), interpreter.own(), message);
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  interpreter.spend(8);
  auto* made = interpreter.make_namespace();
  const auto& from = arguments.values[0];
  if (from.is<DictPtr>()) {
    for (const auto& [key, value] : from.dict().entries)
      made->attributes.emplace_back(text_of(key).bytes(), value);
  }
  for (auto& entry : arguments.named) made->attributes.push_back(std::move(entry));
  return {made};
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  throw Refusal(printable(written(arguments.values[0]).bytes()));
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const auto& format = text_of(arguments.values[0]).bytes();
  std::tm local{};
  const auto now = interpreter.now();
  localtime_r(&now, &local);
  // A blank in front: strftime gives 0 for an empty result as for one that does not fit.
  std::string out(format.size() * 16 + 64, ' ');
  const auto length = std::strftime(out.data(), out.size(), (" " + format).c_str(), &local);
  if (length == 0) throw Failure("strftime_now: expected a format with a shorter result");
  return interpreter.text(std::string_view(out).substr(1, length - 1));
}

Builtins all() {
  return {
      {"range", {{"begin", "end", "step"}, 1, range}},
      {"dict", {{"from", "..."}, 0, dict}},
      {"namespace", {{"from", "..."}, 0, make_namespace}},
      {"raise_exception", {{"message"}, 1, raise_exception}},
      {"strftime_now", {{"format"}, 1, strftime_now}},
  };
}

}  // namespace function
}  // namespace

const Builtins& functions() {
  static const Builtins kAll = function::all();
  return kAll;
}

}  // namespace tessera::chat
