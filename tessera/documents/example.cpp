#include "tessera/documents/example.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/documents/conversation.h"

namespace tessera::documents {
namespace {

using data::Learn;
using data::RowShape;

std::string text_at(const Json& row, const char* key) {
  const auto* value = find(row, key);
  if (value == nullptr) user_error("{}: expected a text, found none", key);
  if (!value->is_string()) user_error("{}: expected a text, got {}", key, value->type_name());
  return value->get<std::string>();
}

std::string text_or_empty(const Json& row, const char* key) {
  return find(row, key) == nullptr ? "" : text_at(row, key);
}

const Json& list_at(const Json& row, const char* key) {
  const auto* value = find(row, key);
  if (value == nullptr) user_error("{}: expected a list of messages, found none", key);
  if (!value->is_array()) {
    user_error("{}: expected a list of messages, got {}", key, value->type_name());
  }
  return *value;
}

/// Tools stand as a list, or as the text of one (ShareGPT, and columns that hold no lists).
Json tools_of(const Json& row) {
  const auto* tools = find(row, "tools");
  if (tools == nullptr) return nullptr;
  auto list = tools->is_string() ? Json::parse(tools->get<std::string>(), nullptr, false) : *tools;
  if (!list.is_array()) user_error("tools: expected a list, or the JSON text of one");
  return list.empty() ? Json() : list;
}

/// ShareGPT's names of roles.
std::string role_named(const std::string& from, size_t index) {
  static const std::map<std::string, std::string, std::less<>> kRoles{
      {"human", "user"},
      {"user", "user"},
      {"gpt", "assistant"},
      {"assistant", "assistant"},
      {"model", "assistant"},
      {"chatgpt", "assistant"},
      {"bot", "assistant"},
      {"system", "system"},
      {"observation", "tool"},
      {"tool", "tool"},
      {"function_response", "tool"},
      {"function_call", "assistant"}};
  const auto found = kRoles.find(from);
  if (found != kRoles.end()) return found->second;
  user_error(
      "message {}: from: expected human, gpt, system, observation, function_call or a name in use "
      "for one of "
      "them, got '{}'",
      index + 1, from);
}

/// What ShareGPT's function_call says, as OpenAI's tool calls.
Json tool_calls_in(const std::string& value, size_t index) {
  auto calls = Json::parse(value, nullptr, false);
  if (calls.is_object()) calls = Json::array({calls});
  Json result = Json::array();
  for (const auto& call : calls) {
    const bool is_call = call.is_object() && call.contains("name") && call.contains("arguments");
    if (!is_call) {
      user_error("message {}: function_call: expected JSON with name and arguments", index + 1);
    }
    result.push_back({{"type", "function"}, {"function", call}});
  }
  if (result.empty())
    user_error("message {}: function_call: expected JSON with name and arguments", index + 1);
  return result;
}

Conversation from_conversations(const Json& row, Learn learn) {
  Json messages = Json::array();
  if (auto system = text_or_empty(row, "system"); !system.empty()) {
    messages.push_back(message("system", std::move(system)));
  }
  const auto& turns = list_at(row, "conversations");
  for (size_t i = 0; i < turns.size(); ++i) {
    if (!turns[i].is_object())
      user_error("message {}: expected an object, got {}", i + 1, turns[i].type_name());
    if (find(turns[i], "from") == nullptr && find(turns[i], "role") != nullptr) {
      messages.push_back(turns[i]);  // OpenAI's messages under ShareGPT's key
      continue;
    }
    const auto from = text_at(turns[i], "from");
    auto turn = message(role_named(from, i).c_str(), text_or_empty(turns[i], "value"));
    if (from == "function_call") {
      turn["tool_calls"] = tool_calls_in(turn["content"].get<std::string>(), i);
      turn["content"] = "";
    }
    for (const auto* mark : {"train", "weight"}) {
      if (const auto* value = find(turns[i], mark)) turn[mark] = *value;
    }
    messages.push_back(std::move(turn));
  }
  return conversation_of(messages, tools_of(row), learn);
}

Conversation from_alpaca(const Json& row, Learn learn) {
  Json messages = Json::array();
  if (auto system = text_or_empty(row, "system"); !system.empty()) {
    messages.push_back(message("system", std::move(system)));
  }
  if (const auto* history = find(row, "history")) {
    if (!history->is_array()) user_error("history: expected a list of pairs");
    for (const auto& pair : *history) {
      const bool is_pair =
          pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
      if (!is_pair)
        user_error("history: expected pairs of question and answer, got {}", pair.dump());
      messages.push_back(message("user", pair[0].get<std::string>()));
      messages.push_back(message("assistant", pair[1].get<std::string>()));
    }
  }
  auto question = text_at(row, "instruction");
  if (const auto input = text_or_empty(row, "input"); !input.empty()) question += "\n" + input;
  messages.push_back(message("user", std::move(question)));
  messages.push_back(message("assistant", text_at(row, "output")));
  return conversation_of(messages, nullptr, learn);
}

Example from_prompt(const Json& row, Learn learn) {
  if (!is_conversation(row, RowShape::prompt_completion)) {
    auto completion = text_at(row, "completion");
    if (completion.empty()) user_error("completion: expected a text, got an empty one");
    return Text{.prompt = text_at(row, "prompt"), .completion = std::move(completion)};
  }
  const auto& prompt = row.at("prompt");
  Json messages = prompt;
  for (const auto& answer : list_at(row, "completion")) messages.push_back(answer);
  return conversation_of(messages, tools_of(row), learn, prompt.size());
}

/// The bytes that two texts begin with alike, without the blank before the first that differs: it
/// belongs to both answers (as TRL has it). Whole characters.
size_t shared_bytes(const std::string& a, const std::string& b) {
  auto shared = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto is_inside_character = [&](size_t byte) {
    const auto inside = [&](const std::string& text) {
      return byte < text.size() && (static_cast<unsigned char>(text[byte]) & 0xC0) == 0x80;
    };
    return inside(a) || inside(b);
  };
  while (shared > 0 && is_inside_character(shared)) --shared;
  return shared > 0 && a[shared - 1] == ' ' ? shared - 1 : shared;
}

Pair pair_of_texts(const Json& row) {
  auto chosen = text_at(row, "chosen"), rejected = text_at(row, "rejected");
  auto prompt = text_or_empty(row, "prompt");
  if (find(row, "prompt") == nullptr) {
    const auto shared = shared_bytes(chosen, rejected);
    if (shared == std::min(chosen.size(), rejected.size())) {
      user_error("{}: expected an answer behind what both texts begin with, found none",
                 chosen.size() < rejected.size() ? "chosen" : "rejected");
    }
    prompt = chosen.substr(0, shared);
    chosen.erase(0, shared), rejected.erase(0, shared);
  }
  return {.chosen = Text{.prompt = prompt, .completion = std::move(chosen)},
          .rejected = Text{.prompt = std::move(prompt), .completion = std::move(rejected)}};
}

/// The messages at "prompt" that stand before `answers`; none if those repeat a text.
Json given_messages(const Json& row, const Json& answers) {
  const auto* prompt = find(row, "prompt");
  if (prompt == nullptr) return Json::array();
  if (prompt->is_array()) return *prompt;
  if (!prompt->is_string()) {
    user_error("prompt: expected a text or a list of messages, got {}", prompt->type_name());
  }
  const bool is_repeated = std::ranges::any_of(answers, [&](const Json& one) {
    return one.is_object() && one.value("role", Json()) == "user" &&
           one.value("content", Json()) == *prompt;
  });
  if (is_repeated) return Json::array();
  return Json::array({message("user", prompt->get<std::string>())});
}

bool is_answer(const Json& message) {
  return message.is_object() && message.value("role", Json()) == "assistant";
}

/// Whatever the order of its keys, and what else stands beside.
bool says_the_same(const Json& one, const Json& other) {
  if (!one.is_object() || !other.is_object()) return one == other;
  return std::ranges::all_of(std::array{"role", "content", "tool_calls"}, [&](const char* key) {
    return one.value(key, Json()) == other.value(key, Json());
  });
}

/// One side of a pair of messages.
struct Side {
  Json messages;     ///< all
  size_t given = 0;  ///< of the prompt
  size_t same = 0;   ///< that the other side begins with, too
};

Side side_of(const Json& row, const char* key) {
  const auto& answers = row.at(key);
  Side side{.messages = given_messages(row, answers)};
  side.given = side.messages.size();
  for (const auto& one : answers) side.messages.push_back(one);
  return side;
}

Conversation answer_of(const Json& row, const char* key, const Side& side, Learn learn) {
  const auto from = side.given > 0 ? side.given : side.same;
  const auto first = side.messages.begin() + static_cast<std::ptrdiff_t>(from);
  if (std::none_of(first, side.messages.end(), is_answer)) {
    user_error("{}: expected an answer of the assistant, found none", key);
  }
  // Behind an answer that both have, what others say may differ: each side is a conversation of its own.
  const bool is_answered = std::any_of(
      first, side.messages.begin() + static_cast<std::ptrdiff_t>(std::max(from, side.same)),
      is_answer);
  if (!is_answered && side.same < side.messages.size() && !is_answer(side.messages[side.same])) {
    user_error(
        "{}: message {}: expected both answers behind the same messages, found one that the other "
        "lacks",
        key, side.same + 1);
  }
  return conversation_of(side.messages, tools_of(row), learn, from);
}

Pair pair_of_messages(const Json& row, Learn learn) {
  auto chosen = side_of(row, "chosen"), rejected = side_of(row, "rejected");
  const auto first = std::ranges::mismatch(chosen.messages, rejected.messages, says_the_same).in1;
  chosen.same = rejected.same = static_cast<size_t>(first - chosen.messages.begin());
  return {.chosen = answer_of(row, "chosen", chosen, learn),
          .rejected = answer_of(row, "rejected", rejected, learn)};
}

}  // namespace

data::RowShape shape_of(const Json& row) {
  struct Keys {
    RowShape shape;
    std::array<const char*, 2> keys;  ///< all of them
  };
  static constexpr std::array<Keys, 6> kShapes{
      {{RowShape::messages, {"messages", nullptr}},
       {RowShape::conversations, {"conversations", nullptr}},
       {RowShape::alpaca, {"instruction", "output"}},
       {RowShape::prompt_completion, {"prompt", "completion"}},
       {RowShape::preference, {"chosen", "rejected"}},
       {RowShape::text, {"text", nullptr}}}};
  for (const auto& [shape, keys] : kShapes) {
    const auto has = [&](const char* key) { return key == nullptr || row.contains(key); };
    if (std::ranges::all_of(keys, has)) return shape;
  }
  std::string names;
  for (const auto& [key, value] : row.items()) names += (names.empty() ? "" : ", ") + key;
  user_error(
      "expected the keys messages, conversations, instruction and output, prompt and completion, "
      "chosen and rejected, or text; got {}",
      names.empty() ? "none" : names);
}

bool is_conversation(const Json& row, RowShape shape) {
  const bool may_be_either = shape == RowShape::prompt_completion || shape == RowShape::preference;
  if (!may_be_either) return shape != RowShape::text;
  const auto* told_by = find(row, shape == RowShape::preference ? "chosen" : "prompt");
  return told_by != nullptr && told_by->is_array();
}

Example read_example(const Json& row, RowShape shape, Learn learn) {
  switch (shape) {
    case RowShape::text:
      return Text{.prompt = "", .completion = text_at(row, "text")};
    case RowShape::prompt_completion:
      return from_prompt(row, learn);
    case RowShape::messages:
      return conversation_of(list_at(row, "messages"), tools_of(row), learn);
    case RowShape::conversations:
      return from_conversations(row, learn);
    case RowShape::alpaca:
      return from_alpaca(row, learn);
    case RowShape::preference:
    case RowShape::automatic:
      break;
  }
  __builtin_unreachable();
}

Pair read_pair(const Json& row, Learn learn) {
  for (const auto* key : {"chosen", "rejected"}) {
    const auto* answer = find(row, key);
    if (answer == nullptr) user_error("{}: expected a text or a list of messages, found none", key);
    if (!answer->is_string() && !answer->is_array()) {
      user_error("{}: expected a text or a list of messages, got {}", key, answer->type_name());
    }
    const auto size =
        answer->is_string() ? answer->get_ref<const std::string&>().size() : answer->size();
    if (size == 0) user_error("{}: expected an answer, got none", key);
  }
  const auto &chosen = row.at("chosen"), &rejected = row.at("rejected");
  if (chosen.type() != rejected.type()) {
    user_error("chosen and rejected: expected two texts or two lists of messages, got one of each");
  }
  if (chosen == rejected) user_error("chosen and rejected are equal: nothing can be preferred");
  return chosen.is_array() ? pair_of_messages(row, learn) : pair_of_texts(row);
}

}  // namespace tessera::documents
