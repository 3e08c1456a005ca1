#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "tessera/chat/parser.h"
#include "tessera/chat/value.h"

namespace tessera::chat {

using Kind = Token::Kind;

namespace {

/// How deep an expression's tree may be: whoever walks it keeps a stack.
constexpr int kMaxExpressionDepth = 150;

struct BinaryToken {
  std::string_view symbol;
  BinaryOperator what;
};
/// From loose to tight; `not` and comparisons stand between the second and the third.
const std::vector<BinaryToken> kLevels[] = {
    {{"or", BinaryOperator::disjunction}},
    {{"and", BinaryOperator::conjunction}},
    {{"+", BinaryOperator::add}, {"-", BinaryOperator::subtract}},
    {{"~", BinaryOperator::concatenate}},
    {{"*", BinaryOperator::multiply},
     {"/", BinaryOperator::divide},
     {"//", BinaryOperator::floor_divide},
     {"%", BinaryOperator::modulo}},
    {{"**", BinaryOperator::power}},
};
constexpr int kSums = 2, kNumLevels = 6;

}  // namespace

/// An expression above `parts`.
template <typename Node>
ExpressionPtr Parser::make(int line, Node node, std::initializer_list<const ExpressionPtr*> parts) {
  auto made = std::make_unique<Expression>();
  made->line = line;
  for (const auto* part : parts) {
    if (*part) made->depth = std::max(made->depth, (*part)->depth + 1);
  }
  if (made->depth > kMaxExpressionDepth)
    throw Failure(fmt::format("expected an expression of at most {} steps within one another",
                              kMaxExpressionDepth));
  made->node = std::move(node);
  return made;
}

ExpressionPtr Parser::tuple(bool conditional) {
  const int line = peek().line;
  auto first = expression(conditional);
  if (!is_symbol(",")) return first;
  ListLiteral literal{{}, true};
  int depth = first->depth;
  literal.items.push_back(std::move(first));
  while (skip_symbol(",")) {
    if (is(Kind::block_end) || is(Kind::output_end) || is_symbol(")")) break;
    literal.items.push_back(expression(conditional));
    depth = std::max(depth, literal.items.back()->depth);
  }
  auto made = make(line, std::move(literal), {});
  made->depth = depth + 1;
  return made;
}

ExpressionPtr Parser::expression(bool conditional) {
  if (++depth_ > kMaxExpressionDepth)
    throw Failure(
        fmt::format("expected at most {} brackets within one another", kMaxExpressionDepth));
  auto parsed = conditional ? conditional_expression() : binary(0);
  --depth_;
  return parsed;
}

ExpressionPtr Parser::conditional_expression() {
  auto value = binary(0);
  while (is_name("if")) {
    const int line = next().line;
    auto condition = binary(0);
    ExpressionPtr otherwise;
    if (skip_name("else")) otherwise = expression();
    auto made = make(line, Constant::none, {&value, &condition, &otherwise});
    made->node = Conditional{std::move(condition), std::move(value), std::move(otherwise)};
    value = std::move(made);
  }
  return value;
}

ExpressionPtr Parser::binary(int level) {
  const auto operand = [&] {
    if (level + 1 == kNumLevels) return unary();
    return level + 1 == kSums ? negation() : binary(level + 1);
  };
  auto left = operand();
  for (;;) {
    const auto& candidates = kLevels[level];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& one) {
      return is_symbol(one.symbol) || (level < kSums && is_name(one.symbol));
    });
    if (found == candidates.end()) return left;
    const int line = next().line;
    auto right = operand();
    auto made = make(line, Constant::none, {&left, &right});
    made->node = Binary{found->what, std::move(left), std::move(right)};
    left = std::move(made);
  }
}

ExpressionPtr Parser::negation() {
  if (!is_name("not")) return comparison();
  const int line = next().line;
  if (++depth_ > kMaxExpressionDepth) throw Failure("expected fewer not in a row");
  auto operand = negation();
  --depth_;
  auto made = make(line, Constant::none, {&operand});
  made->node = Unary{UnaryOperator::negation, std::move(operand)};
  return made;
}

ExpressionPtr Parser::comparison() {
  static constexpr std::pair<std::string_view, Comparison> kSymbols[] = {
      {"==", Comparison::equal},  {"!=", Comparison::not_equal},
      {"<", Comparison::less},    {"<=", Comparison::less_equal},
      {">", Comparison::greater}, {">=", Comparison::greater_equal}};
  const int line = peek().line;
  auto first = binary(kSums);
  Compare chain;
  int depth = first->depth;
  for (;;) {
    const auto* found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [&](const auto& one) { return is_symbol(one.first); });
    Comparison what;
    if (found != std::end(kSymbols)) {
      what = found->second;
    } else if (is_name("in")) {
      what = Comparison::in;
    } else if (is_name("not") && is_name("in", 1)) {
      ++at_;
      what = Comparison::not_in;
    } else {
      break;
    }
    ++at_;
    chain.others.emplace_back(what, binary(kSums));
    depth = std::max(depth, chain.others.back().second->depth);
  }
  if (chain.others.empty()) return first;
  chain.first = std::move(first);
  auto made = make(line, std::move(chain), {});
  made->depth = depth + 1;
  return made;
}

ExpressionPtr Parser::unary(bool with_filters) {
  ExpressionPtr node;
  if (is_symbol("-") || is_symbol("+")) {
    const auto token = next();
    if (++depth_ > kMaxExpressionDepth) throw Failure("expected fewer signs in a row");
    auto operand = unary(false);
    --depth_;
    node = make(token.line, Constant::none, {&operand});
    node->node =
        Unary{token.text == "-" ? UnaryOperator::minus : UnaryOperator::plus, std::move(operand)};
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

ExpressionPtr Parser::constant(const Token& token) {
  if (token.kind == Kind::real) {
    // 1e999 is infinity, as Python has it, where std::stod throws.
    return make(token.line, std::strtod(token.text.c_str(), nullptr), {});
  }
  int64_t number = 0;
  const auto* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, number).ec != std::errc()) {
    throw Failure(fmt::format("expected a number of at most 64 bits, got {}", token.text));
  }
  return make(token.line, number, {});
}

ExpressionPtr Parser::primary() {
  const int line = peek().line;
  line_ = line;
  if (is(Kind::string)) {
    std::string text;
    while (is(Kind::string)) text += next().text;
    return make(line, StringLiteral{std::move(text)}, {});
  }
  if (is(Kind::integer) || is(Kind::real)) return constant(next());
  if (is(Kind::name)) {
    const auto name = next().text;
    if (name == "true" || name == "True") return make(line, Constant::yes, {});
    if (name == "false" || name == "False") return make(line, Constant::no, {});
    if (name == "none" || name == "None") return make(line, Constant::none, {});
    return make(line, Name{name}, {});
  }
  if (is_symbol("(")) return parenthesised();
  if (is_symbol("[")) return list();
  if (is_symbol("{")) return dict();
  refuse_token("an expression");
}

ExpressionPtr Parser::parenthesised() {
  const int line = next().line;
  if (skip_symbol(")")) return make(line, ListLiteral{{}, true}, {});
  auto inner = tuple();
  expect_symbol(")");
  return inner;
}

ExpressionPtr Parser::list() {
  const int line = next().line;
  ListLiteral literal;
  int depth = 0;
  while (!skip_symbol("]")) {
    if (!literal.items.empty()) expect_symbol(",");
    if (skip_symbol("]")) break;
    literal.items.push_back(expression());
    depth = std::max(depth, literal.items.back()->depth + 1);
  }
  auto made = make(line, std::move(literal), {});
  made->depth = depth;
  return made;
}

ExpressionPtr Parser::dict() {
  const int line = next().line;
  DictLiteral literal;
  int depth = 0;
  while (!skip_symbol("}")) {
    if (!literal.entries.empty()) expect_symbol(",");
    if (skip_symbol("}")) break;
    auto key = expression();
    expect_symbol(":");
    auto value = expression();
    depth = std::max({depth, key->depth + 1, value->depth + 1});
    literal.entries.emplace_back(std::move(key), std::move(value));
  }
  auto made = make(line, std::move(literal), {});
  made->depth = depth;
  return made;
}

ExpressionPtr Parser::postfix(ExpressionPtr subject) {
  for (;;) {
    const int line = peek().line;
    if (skip_symbol(".")) {
      auto made = make(line, Constant::none, {&subject});
      if (is(Kind::integer)) {
        auto key = constant(next());
        made->node = Item{std::move(subject), std::move(key)};
      } else {
        made->node = Attribute{std::move(subject), expect_name()};
      }
      subject = std::move(made);
    } else if (skip_symbol("[")) {
      subject = subscript(std::move(subject));
    } else if (is_symbol("(")) {
      auto made = make(line, Constant::none, {&subject});
      made->node = Call{std::move(subject), arguments()};
      subject = std::move(made);
    } else {
      return subject;
    }
  }
}

/// Behind [: a key, or the parts of a slice.
ExpressionPtr Parser::subscript(ExpressionPtr object) {
  const int line = peek().line;
  ExpressionPtr parts[3];
  int num_colons = 0;
  while (!is_symbol("]")) {
    if (skip_symbol(":")) {
      if (++num_colons > 2) refuse_token("]");
    } else if (parts[num_colons] == nullptr) {
      parts[num_colons] = tuple();
    } else {
      refuse_token("]");
    }
  }
  expect_symbol("]");
  if (num_colons == 0 && parts[0] == nullptr) throw Failure("expected a key in []");
  auto made = make(line, Constant::none, {&object, &parts[0], &parts[1], &parts[2]});
  if (num_colons == 0) {
    made->node = Item{std::move(object), std::move(parts[0])};
  } else {
    made->node =
        Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
  }
  return made;
}

ExpressionPtr Parser::filters(ExpressionPtr subject) {
  for (;;) {
    if (skip_symbol("|")) {
      subject = filter(std::move(subject));
    } else if (subject && is_name("is")) {
      subject = test(std::move(subject));
    } else if (subject && is_symbol("(")) {
      auto made = make(peek().line, Constant::none, {&subject});
      made->node = Call{std::move(subject), arguments()};
      subject = std::move(made);
    } else {
      return subject;
    }
  }
}

ExpressionPtr Parser::filter(ExpressionPtr subject) {
  const int line = peek().line;
  auto made = make(line, Constant::none, {&subject});
  Filter node{std::move(subject), expect_name(), {}};
  if (is_symbol("(")) node.arguments = arguments();
  made->node = std::move(node);
  return made;
}

ExpressionPtr Parser::test(ExpressionPtr subject) {
  const int line = next().line;
  const bool negated = skip_name("not");
  auto made = make(line, Constant::none, {&subject});
  Test node{std::move(subject), expect_name(), {}};
  const bool begins_argument = is(Kind::name) || is(Kind::string) || is(Kind::integer) ||
                               is(Kind::real) || is_symbol("[") || is_symbol("{");
  if (is_symbol("(")) {
    node.arguments = arguments();
  } else if (begins_argument && !is_name("else") && !is_name("or") && !is_name("and") &&
             !is_name("if") && !is_name("is")) {
    node.arguments.values.push_back(postfix(primary()));
  }
  made->node = std::move(node);
  if (!negated) return made;
  auto outer = make(line, Constant::none, {&made});
  outer->node = Unary{UnaryOperator::negation, std::move(made)};
  return outer;
}

ArgumentList Parser::arguments() {
  expect_symbol("(");
  ArgumentList list;
  while (!skip_symbol(")")) {
    if (!list.values.empty() || !list.named.empty()) expect_symbol(",");
    if (skip_symbol(")")) break;
    if (is(Kind::name) && is_symbol("=", 1)) {
      auto name = next().text;
      ++at_;
      list.named.emplace_back(std::move(name), expression());
    } else {
      if (!list.named.empty()) refuse_token("a named argument, as the one before is");
      list.values.push_back(expression());
    }
  }
  return list;
}

}  // namespace tessera::chat
