// The filters, tests, methods and functions that templates find.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/chat/interpreter.h"
#include "tessera/chat/value.h"

namespace tessera::chat {

/// One of them. Before `run`, named arguments are put at the places that `parameters` gives them, and
/// what is missing there is undefined. A last parameter "..." takes whatever more there is.
struct Builtin {
  std::vector<std::string_view> parameters;  ///< with the subject in front, where there is one
  size_t num_required = 0;
  Value (*run)(Interpreter&, Arguments&);
};
using Builtins = std::map<std::string_view, Builtin>;

const Builtins& text_filters();
const Builtins& list_filters();
const Builtins& tests();
const Builtins& text_methods();
const Builtins& dict_methods();
const Builtins& functions();

/// The functions as values of the outermost scope.
std::map<std::string, Value> global_functions();

Value run_builtin(Interpreter& interpreter, std::string_view name, const Builtin& builtin,
                  Arguments arguments);

/// json.dumps of Python.
struct JsonOptions {
  bool ascii = false, sort_keys = false;
  int indent = -1;  ///< -1: on one line
  std::string item_separator = ", ", key_separator = ": ";
};
Text json_text(const Value& value, const JsonOptions& options);

/// a.b.c or a number, as map, sort and selectattr take it.
Value attribute_path(Interpreter& interpreter, const Value& object, const Value& path);

/// Upper or lower case of a string, with its sources.
enum class Case { upper, lower, title, capital };
Text in_case(const Text& text, Case wanted);

}  // namespace tessera::chat
