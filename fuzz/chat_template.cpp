#include <nlohmann/json.hpp>

#include "fuzz/target.h"
#include "tessera/chat/assistant.h"

// A template, rendered with a conversation of every kind of message; limits as small as a second allows.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::chat;
  static const Inputs inputs{
      .messages = Json::parse(
          R"([{"role": "system", "content": "S\u00e4"}, {"role": "user", "content": [{"type": "text", "text": " Q\n"}]},
          {"role": "assistant", "content": "<think>\nR</think>A", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]},
          {"role": "tool", "content": "T"}, {"role": "assistant", "content": "", "reasoning_content": "R"}])"),
      .tools = Json::parse(
          R"([{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}])"),
      .documents = nullptr,
      .variables = {{"bos_token", "<s>"}, {"n", 3}}};
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const ChatTemplate chat_template("template", bytes);
    const RenderOptions options{
        .now = 0, .limits = {.steps = 20'000, .steps_per_input_byte = 0, .output_bytes = 100'000}};
    const auto rendered = chat_template.render(inputs, options);
    // Runs cover the text without gaps, and what is learned lies in it.
    size_t end = 0;
    for (const auto& run : rendered.runs) {
      if (run.begin != end || run.end <= run.begin) std::abort();
      end = run.end;
    }
    if (end != rendered.text.size()) std::abort();
    for (const auto& span : assistant_spans(chat_template, inputs, rendered, options)) {
      if (span.begin >= span.end || span.end > end) std::abort();
    }
  });
}
