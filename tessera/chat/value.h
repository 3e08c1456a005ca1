// What a template computes with: Python's values, as far as templates meet them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/chat/text.h"

namespace tessera::chat {

/// What stops a rendering. `ChatTemplate::render` makes it a UserError with file and line.
class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the template itself says with raise_exception.
class Refusal : public Failure {
  using Failure::Failure;
};

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Function;

/// Nothing where a name, key or attribute was looked up: empty in the output, false, and an error
/// for whoever asks more of it (Jinja2's default Undefined).
struct Undefined {
  std::shared_ptr<const std::string> why;  ///< "'x' is undefined"
};
struct None {};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using LoopPtr = std::shared_ptr<const Loop>;
using FunctionPtr = std::shared_ptr<const Function>;

/// A value and the source that its own bytes have when it is written: digits, a list's brackets.
struct Value {
  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Namespace*,
               LoopPtr, FunctionPtr>
      data;
  SourceId source = 0;

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  template <typename T>
  const T& as() const {
    return std::get<T>(data);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<TextPtr>(); }
  bool is_number() const { return is<bool>() || is<int64_t>() || is<double>(); }
  const Text& text() const { return *as<TextPtr>(); }
  const List& list() const { return *as<ListPtr>(); }
  const Dict& dict() const { return *as<DictPtr>(); }
};

/// How much is in a value and how deep: shared parts count as often as they are met, so that whoever
/// walks a value knows the cost before. Both are limited where lists and dicts are made.
struct Measure {
  size_t nodes = 1;
  int depth = 0;
};
Measure measure_of(const Value& value);

struct List {
  std::vector<Value> items;
  bool tuple = false;
  bool generator = false;  ///< true, as Jinja2's are, even without items
  Measure measure;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  ///< in the order of their insertion
  int message = -1;                              ///< this is messages[message]
  Measure measure;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

/// `loop` inside of a for.
struct Loop {
  ListPtr items;
  size_t index = 0;
};

/// Arguments of a call. Those of a filter, test or method have its subject in front.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter;
struct Function {
  std::string name;
  std::function<Value(Interpreter&, Arguments)> call;
  Measure measure;  ///< of the object that a method is of
};

Value undefined(std::string why);
Value text_value(Text text);
Value list_value(std::vector<Value> items, SourceId source = 0, bool tuple = false,
                 bool generator = false);
Value dict_value(std::vector<std::pair<Value, Value>> entries, SourceId source = 0,
                 int message = -1);
/// A function, or a method of `object`.
Value function_value(std::string name, std::function<Value(Interpreter&, Arguments)> call,
                     const Value* object = nullptr);

/// Python's name of the type, for errors: "str", "list", ..
std::string type_name(const Value& value);
/// Failure "expected .., got a ..", or what is undefined.
[[noreturn]] void refuse(const Value& value, std::string_view expected);

bool truth(const Value& value);
bool equal(const Value& left, const Value& right);
/// -1, 0, 1; Failure if Python has no order for them.
int compare(const Value& left, const Value& right);
double number_of(const Value& value);             ///< Failure if it is none
int64_t whole_number(const Value& value);         ///< Failure if it is no int or bool
const Text& text_of(const Value& value);          ///< Failure if it is no string
std::vector<Value> items_of(const Value& value);  ///< what a for over it visits; Failure if nothing

/// str() and repr() of Python.
Text written(const Value& value);
void append_repr(Text& out, const Value& value);

}  // namespace tessera::chat
