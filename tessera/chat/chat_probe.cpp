// For tests/integration/chat_peers.py: renders what stands in JSON lines on standard input.
//
// {"template": .., "messages": .., "tools": .., "documents": .., "add_generation_prompt": .., "variables": .., "now": ..}
// becomes {"text": .., "generated": [[begin, end], ..], "assistant": [[begin, end], ..]} or {"error": ..}.
#include <iostream>

#include "tessera/chat/assistant.h"
#include "tessera/chat/template.h"

namespace tessera::chat {
namespace {

Json list_of(const std::vector<Span>& spans) {
  Json list = Json::array();
  for (const auto& span : spans) list.push_back({span.begin, span.end});
  return list;
}

Json answer(const Json& line) {
  Inputs inputs;
  inputs.messages = line.at("messages");
  inputs.tools = line.value("tools", Json());
  inputs.documents = line.value("documents", Json());
  inputs.add_generation_prompt = line.value("add_generation_prompt", false);
  inputs.variables = line.value("variables", Json::object());
  RenderOptions options;
  if (line.contains("now")) options.now = line["now"].get<std::time_t>();
  try {
    const ChatTemplate chat_template("template", line.at("template").get<std::string>());
    const auto rendered = chat_template.render(inputs, options);
    const auto assistant = assistant_spans(chat_template, inputs, rendered, options);
    return {{"text", rendered.text},
            {"generated", list_of(rendered.generated)},
            {"assistant", list_of(assistant)}};
  } catch (const TemplateRefusal& refusal) {
    return {{"error", refusal.what()}, {"reason", refusal.reason()}};
  } catch (const UserError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace
}  // namespace tessera::chat

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << tessera::chat::answer(tessera::chat::Json::parse(line)).dump() << "\n"
              << std::flush;
  }
  return 0;
}
