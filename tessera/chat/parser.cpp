#include "tessera/chat/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/quoted.h"
#include "tessera/chat/value.h"

namespace tessera::chat {

using Kind = Token::Kind;

namespace {

/// Blocks within blocks. Python refuses a hundred of them.
constexpr int kMaxBlocks = 60;

}  // namespace

Token Parser::next() {
  Token token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::is_symbol(std::string_view symbol, size_t ahead) const {
  return peek(ahead).kind == Kind::symbol && peek(ahead).text == symbol;
}

bool Parser::is_name(std::string_view name, size_t ahead) const {
  return peek(ahead).kind == Kind::name && peek(ahead).text == name;
}

bool Parser::skip_symbol(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  ++at_;
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  ++at_;
  return true;
}

void Parser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) refuse_token(symbol);
}

void Parser::expect(Kind kind, std::string_view what) {
  if (!is(kind)) refuse_token(what);
  ++at_;
}

std::string Parser::expect_name() {
  if (!is(Kind::name)) refuse_token("a name");
  return next().text;
}

void Parser::refuse_token(std::string_view expected) {
  const auto& token = peek();
  line_ = token.line;
  const std::string got = token.kind == Kind::data           ? "text"
                          : token.kind == Kind::block_begin  ? "{%"
                          : token.kind == Kind::block_end    ? "%}"
                          : token.kind == Kind::output_begin ? "{{"
                          : token.kind == Kind::output_end   ? "}}"
                          : token.kind == Kind::end          ? "the end of the template"
                                                             : quoted(token.text);
  throw Failure(fmt::format("expected {}, got {}", expected, got));
}

Block Parser::parse() { return block({}); }

/// Statements up to a tag of `ends` (its {% is read, its name not), or to the template's end if there
/// are none.
Block Parser::block(std::initializer_list<std::string_view> ends) {
  if (++depth_ > kMaxBlocks)
    throw Failure(fmt::format("expected at most {} blocks within one another", kMaxBlocks));
  Block statements;
  for (;;) {
    line_ = peek().line;
    const int line = line_;
    if (is(Kind::end)) {
      if (ends.size() > 0) refuse_token(fmt::format("{{% {} %}}", *(ends.end() - 1)));
      break;
    }
    if (is(Kind::data)) {
      statements.push_back({line, Data{next().text}});
    } else if (is(Kind::output_begin)) {
      ++at_;
      statements.push_back({line, Output{tuple()}});
      expect(Kind::output_end, "}}");
    } else {
      expect(Kind::block_begin, "a tag");
      if (!is(Kind::name)) refuse_token("the name of a tag");
      if (std::find(ends.begin(), ends.end(), peek().text) != ends.end()) break;
      statements.push_back(statement(next().text));
      statements.back().line = line;
    }
  }
  --depth_;
  return statements;
}

Statement Parser::statement(const std::string& tag) {
  if (tag == "for") return {0, for_statement()};
  if (tag == "if") return {0, if_statement()};
  if (tag == "set") return {0, set_statement()};
  if (tag == "macro") return {0, macro_statement()};
  if (tag == "call") return {0, call_statement()};
  if (tag == "break" || tag == "continue") {
    expect(Kind::block_end, "%}");
    return {0, tag == "break" ? Jump::leave : Jump::next};
  }
  if (tag == "generation") {
    has_generation_ = true;
    expect(Kind::block_end, "%}");
    Generation generation{block({"endgeneration"})};
    close("endgeneration");
    return {0, std::move(generation)};
  }
  --at_;
  refuse_token("for, if, set, macro, call, generation, break, continue or raw");
}

void Parser::close(std::string_view tag) {
  if (!skip_name(tag)) refuse_token(tag);
  expect(Kind::block_end, "%}");
}

For Parser::for_statement() {
  For loop;
  loop.target = target(false);
  if (!skip_name("in")) refuse_token("in");
  loop.items = tuple(false);
  if (skip_name("if")) loop.condition = expression();
  expect(Kind::block_end, "%} (loops are not recursive here)");
  loop.body = block({"else", "endfor"});
  if (skip_name("else")) {
    expect(Kind::block_end, "%}");
    loop.otherwise = block({"endfor"});
  }
  close("endfor");
  return loop;
}

If Parser::if_statement() {
  If branches;
  do {
    auto condition = tuple(false);
    expect(Kind::block_end, "%}");
    auto body = block({"elif", "else", "endif"});
    branches.branches.emplace_back(std::move(condition), std::move(body));
  } while (skip_name("elif"));
  if (skip_name("else")) {
    expect(Kind::block_end, "%}");
    branches.otherwise = block({"endif"});
  }
  close("endif");
  return branches;
}

Set Parser::set_statement() {
  Set set;
  set.target = target(true);
  if (skip_symbol("=")) {
    set.value = tuple();
    expect(Kind::block_end, "%}");
    return set;
  }
  if (is_symbol("|")) set.value = filters(nullptr);
  expect(Kind::block_end, "= or %}");
  set.block = block({"endset"});
  close("endset");
  return set;
}

Target Parser::single_target(bool may_be_attribute) {
  Target single;
  single.name = expect_name();
  static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                   "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), single.name) != std::end(kReserved)) {
    throw Failure(fmt::format("expected a name to assign to, got {}", single.name));
  }
  if (may_be_attribute && skip_symbol(".")) single.attribute = expect_name();
  return single;
}

Target Parser::target(bool may_be_attribute) {
  const bool has_parentheses = skip_symbol("(");
  Target first = single_target(may_be_attribute);
  if (is_symbol(",")) {
    Target several;
    several.parts.push_back(std::move(first));
    while (skip_symbol(",")) {
      if (!is(Kind::name) || is_name("in")) break;
      several.parts.push_back(single_target(may_be_attribute));
    }
    first = std::move(several);
  }
  if (has_parentheses) expect_symbol(")");
  return first;
}

void Parser::parameters(MacroDefinition& macro) {
  expect_symbol("(");
  while (!skip_symbol(")")) {
    if (!macro.parameters.empty()) expect_symbol(",");
    macro.parameters.push_back(expect_name());
    if (skip_symbol("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      refuse_token("= and a default, as the parameter before has one");
    }
  }
}

Macro Parser::macro_statement() {
  auto macro = std::make_shared<MacroDefinition>();
  macro->name = expect_name();
  parameters(*macro);
  expect(Kind::block_end, "%}");
  macro->body = block({"endmacro"});
  if (!skip_name("endmacro")) refuse_token("endmacro");
  if (is(Kind::name)) ++at_;
  expect(Kind::block_end, "%}");
  return {std::move(macro)};
}

CallBlock Parser::call_statement() {
  CallBlock call;
  auto caller = std::make_shared<MacroDefinition>();
  caller->name = "caller";
  if (is_symbol("(")) parameters(*caller);
  call.call = expression();
  if (!std::holds_alternative<Call>(call.call->node)) refuse_token("the call of a macro");
  expect(Kind::block_end, "%}");
  caller->body = block({"endcall"});
  close("endcall");
  call.caller = std::move(caller);
  return call;
}

}  // namespace tessera::chat
