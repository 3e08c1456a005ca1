// The syntax tree of a template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// Expressions.
enum class Constant { none, yes, no };
struct StringLiteral {
  std::string text;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionPtr> items;
  bool tuple = false;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};
enum class UnaryOperator { minus, plus, negation };
struct Unary {
  UnaryOperator what;
  ExpressionPtr operand;
};
enum class BinaryOperator {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concatenate,
  conjunction,
  disjunction
};
struct Binary {
  BinaryOperator what;
  ExpressionPtr left, right;
};
enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };
struct Compare {  ///< a < b < c
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> others;
};
struct Conditional {
  ExpressionPtr condition, yes, no;  ///< without `no`: undefined
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, key;
};
struct Slice {
  ExpressionPtr object, begin, end, step;  ///< each of the last three may be missing
};
struct ArgumentList {
  std::vector<ExpressionPtr> values;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};
struct Call {
  ExpressionPtr callee;
  ArgumentList arguments;
};
struct Filter {
  ExpressionPtr subject;  ///< missing in {% set x | filter %}: the captured text
  std::string name;
  ArgumentList arguments;
};
struct Test {
  ExpressionPtr subject;
  std::string name;
  ArgumentList arguments;
};

struct Expression {
  int line = 0;
  int depth = 0;  ///< of the tree below it
  std::variant<Constant, int64_t, double, StringLiteral, Name, ListLiteral, DictLiteral, Unary,
               Binary, Compare, Conditional, Attribute, Item, Slice, Call, Filter, Test>
      node;
};

// Statements.
struct Statement;
using Block = std::vector<Statement>;

/// What is assigned to: a name, an attribute of a namespace, or several in a tuple.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;
};
struct Data {  ///< text of the template
  std::string text;
};
struct Output {  ///< {{ .. }}
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;  ///< if and elif
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr items, condition;  ///< `condition` may be missing
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;  ///< of a block set: the filters on its text, or missing
  std::optional<Block> block;
};
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  ///< of the last parameters
  Block body;
};
struct Macro {
  std::shared_ptr<const MacroDefinition> definition;
};
struct CallBlock {  ///< {% call(..) macro(..) %}: the body is `caller`
  std::shared_ptr<const MacroDefinition> caller;
  ExpressionPtr call;
};
struct Generation {
  Block body;
};
enum class Jump { next, leave };  ///< continue, break

struct Statement {
  int line = 0;
  std::variant<Data, Output, If, For, Set, Macro, CallBlock, Generation, Jump> node;
};

}  // namespace tessera::chat
