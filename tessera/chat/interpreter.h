// Carries out a template's syntax tree.
#pragma once

#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/chat/syntax.h"
#include "tessera/chat/value.h"

namespace tessera::chat {

/// What a rendering may take. Published templates take a few thousand steps.
struct Limits {
  uint64_t steps = 20'000'000;  ///< an expression, a value of a list or a byte of a string is one
  uint64_t steps_per_input_byte = 200;  ///< more of them for long conversations
  int depth = 500;                      ///< calls, blocks and expressions within one another
  size_t output_bytes = size_t{1} << 28;
};

/// Names of a block, within those of the blocks around it.
struct Scope {
  std::map<std::string, Value, std::less<>> names;
  Scope* outer = nullptr;
};

class Interpreter {
 public:
  Interpreter(Sources& sources, const Limits& limits, uint64_t steps, std::time_t now)
      : sources_(sources), limits_(limits), steps_left_(steps), now_(now) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// The template's output with `variables`.
  Text run(const Block& statements, std::map<std::string, Value, std::less<>> variables);

  int line() const { return line_; }  ///< of what is being carried out

  // What filters, tests, methods and functions need.
  void spend(uint64_t steps);
  void spend_on(const Value& value) { spend(measure_of(value).nodes); }
  SourceId own() const { return own_; }  ///< source of what the template writes itself, now
  Value text(std::string_view bytes) const { return text_value(Text(bytes, own_)); }
  std::time_t now() const { return now_; }
  Namespace* make_namespace() { return &namespaces_.emplace_back(); }
  Value attribute(const Value& object, std::string_view name);  ///< object.name
  Value item(const Value& object, const Value& key);            ///< object[key]
  Value call(const Value& callee, Arguments arguments);
  Value apply_filter(std::string_view name, Arguments arguments);
  bool apply_test(std::string_view name, Arguments arguments);

 private:
  class Level;
  class TurnOf;

  // Statements (interpreter.cpp).
  enum class Flow { on, next, leave };
  Flow carry_out(const Block& block);
  Flow carry_out(const Statement& statement);
  Flow carry_out_for(const For& loop);
  Flow carry_out_items(const For& loop, std::vector<Value> items);
  void carry_out_set(const Set& set);
  void assign(const Target& target, Value value);
  Text captured(const Block& block);
  Value macro(const std::shared_ptr<const MacroDefinition>& definition);
  Value call_macro(const MacroDefinition& definition, Scope& outer, Arguments arguments);
  void write(const Text& text);
  Scope* open_scope(Scope* outer);
  void close_scope(Scope* scope);

  // Expressions (evaluate.cpp).
  Value evaluate(const Expression& expression);
  Value evaluate_node(const Expression& expression);
  Value name(const std::string& name);
  Value unary(const Unary& node);
  Value binary(const Binary& node);
  Value compare_chain(const Compare& node);
  bool compare_two(Comparison what, const Value& left, const Value& right);
  Value call_node(const Call& node);
  Value filter(const Filter& node);
  Value slice(const Slice& node);
  Arguments evaluate(const ArgumentList& list);

  Sources& sources_;
  const Limits& limits_;
  uint64_t steps_left_;
  std::time_t now_;
  int line_ = 0;
  int depth_ = 0;
  int turn_ = -1;     ///< the message at which the innermost loop over messages stands
  SourceId own_ = 0;  ///< template text in that turn
  Text* output_ = nullptr;
  const Text* block_text_ = nullptr;  ///< what the filters of a block set are applied to
  Scope* scope_ = nullptr;
  bool keep_scopes_ = false;  ///< a macro or caller refers to them
  std::deque<std::unique_ptr<Scope>> scopes_;
  std::deque<Namespace> namespaces_;
};

/// True if `item` is in `container`.
bool contains(const Value& container, const Value& item);
/// left + right and so on (operators.cpp).
Value operate(Interpreter& interpreter, BinaryOperator what, const Value& left, const Value& right);
/// container[begin:end:step] of a string or list.
Value sliced(Interpreter& interpreter, const Value& container, const Value& begin, const Value& end,
             const Value& step);

}  // namespace tessera::chat
