#include "tessera/documents/conversation.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::documents {
namespace {

using data::Learn;

/// A list of text parts as one text.
std::string joined_parts(const Json& parts, size_t index) {
  std::string text;
  for (const auto& part : parts) {
    const bool is_text =
        part.is_object() && find(part, "text") != nullptr && part["text"].is_string();
    if (!is_text) user_error("message {}: content: expected parts of type text alone", index + 1);
    text += part["text"].get<std::string>();
  }
  return text;
}

/// One of OpenAI's messages, as templates expect it.
Json checked_message(const Json& given, size_t index) {
  if (!given.is_object())
    user_error("message {}: expected an object, got {}", index + 1, given.type_name());
  const auto* role = find(given, "role");
  if (role == nullptr || !role->is_string())
    user_error("message {}: role: expected a text", index + 1);
  auto result = given;
  for (const auto* mark : {"train", "weight"}) result.erase(mark);
  const auto* content = find(given, "content");
  if (content == nullptr) {
    result["content"] = "";
  } else if (content->is_array()) {
    result["content"] = joined_parts(*content, index);
  } else if (!content->is_string()) {
    user_error("message {}: content: expected a text, got {}", index + 1, content->type_name());
  }
  return result;
}

/// The first that is not null is a message's reasoning.
constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

/// A message whose reasoning has the names that templates read, as transformers 5 gives it to them.
Json with_reasoning(const Json& message) {
  for (const auto* name : kReasoning) {
    const auto* reasoning = find(message, name);
    if (reasoning == nullptr) continue;
    Json named{{"thinking", *reasoning}};
    for (const auto& [key, part] : message.items()) named[key] = part;
    named["reasoning_content"] = *reasoning;
    return named;
  }
  return message;
}

/// What a message says of whether it is learned; nothing: it says nothing.
std::optional<bool> mark_of(const Json& message, size_t index) {
  for (const auto* key : {"train", "weight"}) {
    const auto* mark = find(message, key);
    if (mark == nullptr) continue;
    if (mark->is_boolean()) return mark->get<bool>();
    if (mark->is_number()) return mark->get<double>() > 0;
    user_error("message {}: {}: expected true, false or a number, got {}", index + 1, key,
               mark->dump());
  }
  return std::nullopt;
}

bool is_of(const Json& message, std::string_view role) { return message.at("role") == role; }

/// An answer that says nothing, in its content, its reasoning or a call, would teach to say nothing.
bool is_empty_answer(const Json& message) {
  if (!is_of(message, "assistant")) return false;
  for (const auto& [key, value] : message.items()) {
    const bool is_about_it = key == "role" || key == "name";
    const bool is_blank = value.is_string() && value.get_ref<const std::string&>().empty();
    if (!is_about_it && !value.is_null() && !value.empty() && !is_blank) return false;
  }
  return true;
}

}  // namespace

const Json* find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Conversation conversation_of(const Json& messages, Json tools, Learn learn, size_t answers_from) {
  Conversation conversation;
  conversation.inputs.tools = std::move(tools);
  auto& checked = conversation.inputs.messages;
  size_t last_answer = messages.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    checked.push_back(with_reasoning(checked_message(messages[i], i)));
    const auto mark = mark_of(messages[i], i);
    conversation.learned.push_back(i >= answers_from && mark.value_or(learn != Learn::marked));
    if (is_of(checked.back(), "assistant")) last_answer = i;
  }
  if (checked.empty()) user_error("expected at least one message, got none");
  if (last_answer == messages.size()) user_error("expected an answer of the assistant, found none");
  const auto first =
      std::ranges::find_if(checked, [](const Json& one) { return !is_of(one, "system"); });
  if (is_of(*first, "assistant")) {
    user_error("the conversation begins with the assistant: expected a user's message before it");
  }
  if (learn == Learn::last) {
    for (size_t i = 0; i < last_answer; ++i) conversation.learned[i] = false;
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    if (conversation.learned[i] && is_empty_answer(checked[i])) {
      user_error("message {}: the assistant's answer is empty", i + 1);
    }
  }
  return conversation;
}

}  // namespace tessera::documents
