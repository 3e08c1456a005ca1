#include "tessera/chat/assistant.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::chat {
namespace {

/// What opens the reasoning in published templates: the model's words, though some prompts begin them.
constexpr std::array<std::string_view, 3> kReasoning = {"<think>", "<|channel>", "<|channel|>"};

/// Bytes of one message's turn: what its fields said and what the template wrote while its loop stood there.
struct Part {
  Span span;
  int message = -1;         ///< whose turn it is
  bool from_field = false;  ///< said by the message itself, other than its role
};

std::vector<Part> parts_of(const Rendered& rendered) {
  std::vector<Part> parts;
  for (const auto& run : rendered.runs) {
    const auto& source = rendered.sources[run.source];
    const bool is_field = source.message >= 0 && !source.field.empty() && source.field != "role";
    const int message = source.message >= 0 ? source.message : source.turn;
    parts.push_back({{run.begin, run.end}, message, is_field});
  }
  return parts;
}

/// Text without a turn, of templates that have no loop over messages: between two parts of a message it
/// is of that message, and so is what follows the conversation's last message.
void give_turns(std::vector<Part>& parts, int num_messages) {
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].message >= 0 || parts[i - 1].message < 0) continue;
    size_t next = i;
    while (next < parts.size() && parts[next].message < 0) ++next;
    const int before = parts[i - 1].message;
    if (next < parts.size() ? parts[next].message != before : before + 1 != num_messages) continue;
    for (size_t j = i; j < next; ++j) parts[j].message = before;
  }
}

bool is_assistant(const Json& messages, int index, const std::vector<bool>& chosen) {
  if (index < 0 || static_cast<size_t>(index) >= messages.size()) return false;
  if (!chosen.empty() && !chosen.at(static_cast<size_t>(index))) return false;
  const auto& message = messages[static_cast<size_t>(index)];
  return message.contains("role") && message["role"] == "assistant";
}

/// Where the words of a turn begin: behind the generation prompt; without one behind what the template
/// wrote up to the role.
size_t words_begin(const Rendered& rendered, const Span& turn, const std::string& prompt) {
  const auto text = std::string_view(rendered.text).substr(turn.begin, turn.end - turn.begin);
  if (!prompt.empty() && text.starts_with(prompt)) return turn.begin + prompt.size();
  return turn.begin;
}

void add_span(std::vector<Span>& spans, Span span) {
  if (span.begin >= span.end) return;
  if (!spans.empty() && spans.back().end == span.begin) {
    spans.back().end = span.end;
  } else {
    spans.push_back(span);
  }
}

/// What {% generation %} blocks wrote in the turns of chosen messages.
std::vector<Span> generated_spans(const Rendered& rendered, const std::vector<bool>& chosen) {
  if (chosen.empty()) return rendered.generated;
  const auto parts = parts_of(rendered);
  std::vector<Span> spans;
  for (const auto& generated : rendered.generated) {
    const auto has_turn = [&](const Part& part) {
      return part.message >= 0 && part.span.begin < generated.end &&
             part.span.end > generated.begin;
    };
    const auto part = std::ranges::find_if(parts, has_turn);
    if (part == parts.end() || chosen.at(static_cast<size_t>(part->message)))
      spans.push_back(generated);
  }
  return spans;
}

}  // namespace

std::string generation_prompt(const ChatTemplate& chat_template, const Inputs& inputs,
                              const Rendered& rendered, const RenderOptions& options) {
  auto asking = inputs;
  asking.add_generation_prompt = true;
  Rendered prompted;
  try {
    prompted = chat_template.render(asking, options);
  } catch (const TemplateRefusal&) {
    return "";
  }
  // It is what comes behind the last message: outside of its turn or, where the loop writes it, behind
  // what the two renderings share.
  size_t begin = prompted.text.size();
  size_t behind_turns = begin;
  for (auto run = prompted.runs.rbegin();
       run != prompted.runs.rend() && prompted.sources[run->source].message < 0; ++run) {
    begin = run->begin;
    if (prompted.sources[run->source].turn < 0 && behind_turns == run->end)
      behind_turns = run->begin;
  }
  const auto shared = std::mismatch(prompted.text.begin(), prompted.text.end(),
                                    rendered.text.begin(), rendered.text.end());
  begin = behind_turns < prompted.text.size()
              ? behind_turns
              : std::max(begin, static_cast<size_t>(shared.first - prompted.text.begin()));
  auto prompt = prompted.text.substr(begin);
  for (const auto opening : kReasoning) prompt = prompt.substr(0, prompt.find(opening));
  return prompt;
}

std::vector<Span> assistant_spans(const ChatTemplate& chat_template, const Inputs& inputs,
                                  const Rendered& rendered, const RenderOptions& options,
                                  const std::vector<bool>& chosen) {
  if (chat_template.has_generation()) return generated_spans(rendered, chosen);
  const auto prompt = generation_prompt(chat_template, inputs, rendered, options);
  auto parts = parts_of(rendered);
  give_turns(parts, static_cast<int>(inputs.messages.size()));
  std::vector<Span> spans;
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    while (end < parts.size() && parts[end].message == parts[i].message) ++end;
    if (is_assistant(inputs.messages, parts[i].message, chosen)) {
      const Span turn{parts[i].span.begin, parts[end - 1].span.end};
      add_span(spans, {words_begin(rendered, turn, prompt), turn.end});
    }
    i = end;
  }
  return spans;
}

}  // namespace tessera::chat
