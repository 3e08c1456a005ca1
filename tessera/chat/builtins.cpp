#include "tessera/chat/builtins.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::chat {

Value run_builtin(Interpreter& interpreter, std::string_view name, const Builtin& builtin,
                  Arguments arguments) {
  const auto& names = builtin.parameters;
  const bool takes_more = !names.empty() && names.back() == "...";
  const size_t num_named = names.size() - (takes_more ? 1 : 0);
  if (arguments.values.size() > num_named && !takes_more) {
    throw Failure(fmt::format("{}: expected at most {} arguments, got {}", name, num_named,
                              arguments.values.size()));
  }
  const size_t num_given = arguments.values.size();
  arguments.values.resize(std::max(num_given, num_named));
  std::vector<std::pair<std::string, Value>> others;
  for (auto& [key, value] : arguments.named) {
    const auto place =
        static_cast<size_t>(std::find(names.begin(), names.end(), key) - names.begin());
    if (place < num_named && place >= num_given) {
      arguments.values[place] = std::move(value);
    } else if (takes_more) {
      others.emplace_back(std::move(key), std::move(value));
    } else {
      throw Failure(fmt::format("{}: expected no argument named {}", name, key));
    }
  }
  arguments.named = std::move(others);
  for (size_t i = num_given; i < builtin.num_required; ++i) {
    if (arguments.values[i].is_undefined())
      throw Failure(fmt::format("{}: expected an argument {}", name, names[i]));
  }
  return builtin.run(interpreter, arguments);
}

Value attribute_path(Interpreter& interpreter, const Value& object, const Value& path) {
  if (path.is<int64_t>()) return interpreter.item(object, path);
  Value value = object;
  const auto& names = text_of(path).bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const auto part = names.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = interpreter.item(value,
                             is_number ? Value{int64_t{std::stoi(part)}} : interpreter.text(part));
    begin = end + 1;
  }
  return value;
}

std::map<std::string, Value> global_functions() {
  std::map<std::string, Value> values;
  for (const auto& [name, function] : functions()) {
    values.emplace(
        name, function_value(std::string(name), [name = name, &function = function](
                                                    Interpreter& interpreter, Arguments arguments) {
          return run_builtin(interpreter, name, function, std::move(arguments));
        }));
  }
  return values;
}

}  // namespace tessera::chat
