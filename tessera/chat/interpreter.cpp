#include "tessera/chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/chat/builtins.h"

namespace tessera::chat {

/// One level deeper while it lives.
class Interpreter::Level {
 public:
  explicit Level(Interpreter& of) : of_(of) {
    if (++of.depth_ > of.limits_.depth) {
      throw Failure(
          fmt::format("expected at most {} calls and blocks within one another; does a macro call "
                      "itself without end?",
                      of.limits_.depth));
    }
  }
  ~Level() { --of_.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& of_;
};

/// While it lives, what is written belongs to the turn of a message.
class Interpreter::TurnOf {
 public:
  TurnOf(Interpreter& of, int message) : of_(of), turn_(of.turn_), own_(of.own_) {
    of.turn_ = message;
    of.own_ = of.sources_.id({.message = -1, .field = {}, .turn = message});
  }
  ~TurnOf() {
    of_.turn_ = turn_;
    of_.own_ = own_;
  }
  TurnOf(const TurnOf&) = delete;
  TurnOf& operator=(const TurnOf&) = delete;

 private:
  Interpreter& of_;
  int turn_;
  SourceId own_;
};

Text Interpreter::run(const Block& statements,
                      std::map<std::string, Value, std::less<>> variables) {
  Text out;
  output_ = &out;
  scope_ = open_scope(open_scope(nullptr));
  for (const auto& [name, value] : global_functions()) scope_->outer->names.emplace(name, value);
  scope_->names = std::move(variables);
  carry_out(statements);
  return out;
}

void Interpreter::spend(uint64_t steps) {
  if (steps > steps_left_)
    throw Failure("expected a template that ends sooner: the limit of steps is reached");
  steps_left_ -= steps;
}

Scope* Interpreter::open_scope(Scope* outer) {
  scopes_.push_back(std::make_unique<Scope>());
  scopes_.back()->outer = outer;
  return scopes_.back().get();
}

void Interpreter::close_scope(Scope* scope) {
  scope_ = scope->outer;
  if (!keep_scopes_) scopes_.pop_back();
}

/// Appends to the output. Text that was made outside of a turn belongs to the turn that writes it.
void Interpreter::write(const Text& text) {
  spend(text.size() + 1);
  if (output_->size() + text.size() > limits_.output_bytes) {
    throw Failure(fmt::format("expected an output of at most {} bytes", limits_.output_bytes));
  }
  if (turn_ < 0) return output_->append(text);
  output_->append(text.with_sources([&](SourceId id) {
    auto source = sources_[id];
    if (source.turn >= 0) return id;
    source.turn = turn_;
    return sources_.id(source);
  }));
}

Interpreter::Flow Interpreter::carry_out(const Block& block) {
  for (const auto& statement : block) {
    if (const auto flow = carry_out(statement); flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::carry_out(const Statement& statement) {
  spend(1);
  line_ = statement.line;
  if (const auto* data = std::get_if<Data>(&statement.node)) {
    write(Text(data->text, own_));
  } else if (const auto* output = std::get_if<Output>(&statement.node)) {
    const Value value = evaluate(*output->value);
    spend_on(value);
    write(value.is_text() ? value.text() : written(value));
  } else if (const auto* branches = std::get_if<If>(&statement.node)) {
    const Level level(*this);
    for (const auto& [condition, body] : branches->branches) {
      if (truth(evaluate(*condition))) return carry_out(body);
    }
    return carry_out(branches->otherwise);
  } else if (const auto* loop = std::get_if<For>(&statement.node)) {
    return carry_out_for(*loop);
  } else if (const auto* set = std::get_if<Set>(&statement.node)) {
    carry_out_set(*set);
  } else if (const auto* defined = std::get_if<Macro>(&statement.node)) {
    scope_->names[defined->definition->name] = macro(defined->definition);
  } else if (const auto* block = std::get_if<CallBlock>(&statement.node)) {
    const auto& node = std::get<Call>(block->call->node);
    auto arguments = evaluate(node.arguments);
    arguments.named.emplace_back("caller", macro(block->caller));
    write(written(call(evaluate(*node.callee), std::move(arguments))));
  } else if (const auto* generation = std::get_if<Generation>(&statement.node)) {
    output_->append(captured(generation->body).with_sources([&](SourceId id) {
      auto source = sources_[id];
      source.generated = true;
      return sources_.id(source);
    }));
  } else {
    return std::get<Jump>(statement.node) == Jump::leave ? Flow::leave : Flow::next;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::carry_out_for(const For& loop) {
  const Level level(*this);
  const Value over = evaluate(*loop.items);
  std::vector<Value> items;
  spend(over.is_text() ? 8 * over.text().size() : 1);
  for (auto& item : items_of(over)) {
    spend(2);
    if (loop.condition) {
      Scope* scope = scope_ = open_scope(scope_);
      assign(loop.target, item);
      const bool taken = truth(evaluate(*loop.condition));
      close_scope(scope);
      if (!taken) continue;
    }
    items.push_back(std::move(item));
  }
  if (items.empty()) {
    Scope* scope = scope_ = open_scope(scope_);
    const auto flow = carry_out(loop.otherwise);
    close_scope(scope);
    return flow;
  }
  return carry_out_items(loop, std::move(items));
}

Interpreter::Flow Interpreter::carry_out_items(const For& loop, std::vector<Value> items) {
  const auto list = list_value(std::move(items)).as<ListPtr>();
  for (size_t i = 0; i < list->items.size(); ++i) {
    spend(4);
    auto state = std::make_shared<Loop>(Loop{list, i});
    Scope* scope = scope_ = open_scope(scope_);
    scope->names.emplace("loop", Value{LoopPtr(std::move(state))});
    const auto& item = list->items[i];
    const int message = item.is<DictPtr>() ? item.dict().message : -1;
    assign(loop.target, item);
    const TurnOf turn(*this, message >= 0 ? message : turn_);
    const auto flow = carry_out(loop.body);
    close_scope(scope);
    if (flow == Flow::leave) break;
  }
  return Flow::on;
}

void Interpreter::carry_out_set(const Set& set) {
  if (!set.block) return assign(set.target, evaluate(*set.value));
  const Text text = captured(*set.block);
  if (!set.value) return assign(set.target, text_value(text));
  const Text* outer = block_text_;
  block_text_ = &text;
  auto value = evaluate(*set.value);
  block_text_ = outer;
  assign(set.target, std::move(value));
}

void Interpreter::assign(const Target& target, Value value) {
  if (!target.parts.empty()) {
    const auto values = items_of(value);
    if (values.size() != target.parts.size()) {
      throw Failure(fmt::format("expected {} values to assign to as many names, got {}",
                                target.parts.size(), values.size()));
    }
    for (size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i]);
    return;
  }
  if (target.attribute.empty()) {
    scope_->names.insert_or_assign(target.name, std::move(value));
    return;
  }
  const Value space = name(target.name);
  if (!space.is<Namespace*>()) refuse(space, fmt::format("{} to be a namespace", target.name));
  auto& attributes = space.as<Namespace*>()->attributes;
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& one) { return one.first == target.attribute; });
  spend(attributes.size());
  if (found != attributes.end()) {
    found->second = std::move(value);
  } else {
    attributes.emplace_back(target.attribute, std::move(value));
  }
}

/// What a block writes, its names its own.
Text Interpreter::captured(const Block& block) {
  const Level level(*this);
  Text text;
  Text* outer = output_;
  output_ = &text;
  Scope* scope = scope_ = open_scope(scope_);
  carry_out(block);
  close_scope(scope);
  output_ = outer;
  return text;
}

Value Interpreter::macro(const std::shared_ptr<const MacroDefinition>& definition) {
  keep_scopes_ = true;
  return function_value(definition->name,
                        [definition, scope = scope_](Interpreter& of, Arguments arguments) {
                          return of.call_macro(*definition, *scope, std::move(arguments));
                        });
}

Value Interpreter::call_macro(const MacroDefinition& definition, Scope& outer,
                              Arguments arguments) {
  const Level level(*this);
  const auto& names = definition.parameters;
  if (arguments.values.size() > names.size()) {
    throw Failure(fmt::format("the macro {} takes at most {} arguments, got {}", definition.name,
                              names.size(), arguments.values.size()));
  }
  Scope* caller_scope = scope_;
  Text text;
  Text* caller_output = output_;
  Scope* scope = scope_ = open_scope(&outer);
  output_ = &text;
  for (auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    const bool is_given = static_cast<size_t>(place - names.begin()) < arguments.values.size();
    if (name != "caller" && (place == names.end() || is_given)) {
      throw Failure(fmt::format("the macro {} has no further argument {}", definition.name, name));
    }
    scope->names.insert_or_assign(name, std::move(value));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (i < arguments.values.size()) {
      scope->names.insert_or_assign(names[i], std::move(arguments.values[i]));
    } else if (!scope->names.contains(names[i])) {
      const size_t num_without = names.size() - definition.defaults.size();
      scope->names.insert_or_assign(
          names[i], i < num_without
                        ? undefined(fmt::format("the parameter {} was not given", names[i]))
                        : evaluate(*definition.defaults[i - num_without]));
    }
  }
  carry_out(definition.body);
  close_scope(scope);
  scope_ = caller_scope;
  output_ = caller_output;
  return text_value(std::move(text));
}

}  // namespace tessera::chat
