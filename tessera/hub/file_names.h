// The files of a model's folder beside its weights.
#pragma once

#include <array>
#include <string_view>

namespace tessera::hub {

inline constexpr std::string_view kChatTemplateFile = "chat_template.jinja";

/// What turns text into tokens and tokens into text.
inline constexpr std::array<std::string_view, 11> kTextFiles = {"generation_config.json",
                                                                "tokenizer.json",
                                                                "tokenizer_config.json",
                                                                "tokenizer.model",
                                                                "special_tokens_map.json",
                                                                "added_tokens.json",
                                                                "vocab.json",
                                                                "vocab.txt",
                                                                "merges.txt",
                                                                "spiece.model",
                                                                kChatTemplateFile};

}  // namespace tessera::hub
