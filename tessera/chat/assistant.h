// Which bytes of a rendered conversation the assistant wrote.
#pragma once

#include <string>
#include <vector>

#include "tessera/chat/template.h"

namespace tessera::chat {

/// What a template writes in front of an answer, without the opening of the model's own reasoning; ""
/// if it writes nothing or refuses to. Cost: one more rendering, with add_generation_prompt.
std::string generation_prompt(const ChatTemplate& chat_template, const Inputs& inputs,
                              const Rendered& rendered, const RenderOptions& options = {});

/// The bytes that assistant messages are learned from, by provenance: of each message with role
/// assistant its content, reasoning and tool calls with what the template writes around them (tags,
/// the end of the turn), without the generation prompt in front, and nothing of other messages.
/// A template's own {% generation %} blocks count instead, if it has them. `chosen`, if it is not
/// empty: of each message, whether it counts if it is an assistant's.
std::vector<Span> assistant_spans(const ChatTemplate& chat_template, const Inputs& inputs,
                                  const Rendered& rendered, const RenderOptions& options = {},
                                  const std::vector<bool>& chosen = {});

}  // namespace tessera::chat
