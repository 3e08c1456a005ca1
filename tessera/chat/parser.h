// From tokens to the syntax tree.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/chat/syntax.h"
#include "tessera/chat/tokens.h"

namespace tessera::chat {

/// Recursive descent in Jinja2's order of precedence. Failure says what was expected; the line is then
/// in `line`.
class Parser {
 public:
  Parser(std::vector<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {}

  Block parse();
  bool has_generation() const { return has_generation_; }

 private:
  // Statements (parser.cpp).
  Block block(std::initializer_list<std::string_view> ends);
  Statement statement(const std::string& tag);
  For for_statement();
  If if_statement();
  Set set_statement();
  Macro macro_statement();
  CallBlock call_statement();
  Target target(bool may_be_attribute);
  Target single_target(bool may_be_attribute);
  void parameters(MacroDefinition& macro);
  void close(std::string_view tag);  ///< the end tag, up to its %}

  // Expressions (parse_expression.cpp).
  ExpressionPtr tuple(bool conditional = true);
  ExpressionPtr expression(bool conditional = true);
  ExpressionPtr conditional_expression();
  ExpressionPtr binary(int level);
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr parenthesised();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr subject);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr filters(ExpressionPtr subject);
  ExpressionPtr filter(ExpressionPtr subject);
  ExpressionPtr test(ExpressionPtr subject);
  ArgumentList arguments();
  template <typename Node>
  ExpressionPtr make(int line, Node node, std::initializer_list<const ExpressionPtr*> parts);
  ExpressionPtr constant(const Token& token);

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next();
  bool is(Token::Kind kind) const { return peek().kind == kind; }
  bool is_symbol(std::string_view symbol, size_t ahead = 0) const;
  bool is_name(std::string_view name, size_t ahead = 0) const;
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  void expect(Token::Kind kind, std::string_view what);
  std::string expect_name();
  [[noreturn]] void refuse_token(std::string_view expected);

  std::vector<Token> tokens_;
  int& line_;
  size_t at_ = 0;
  int depth_ = 0;  ///< of blocks and brackets that are open
  bool has_generation_ = false;
};

}  // namespace tessera::chat
