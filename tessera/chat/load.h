// The templates of a model's folder.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tessera/chat/template.h"

namespace tessera::chat {

struct ModelTemplates {
  std::map<std::string, ChatTemplate> by_name;  ///< "default" and others (tool_use, rag)
  Json variables = Json::object();  ///< bos_token, eos_token and what else templates find

  /// The template called `name`; without one, tool_use if there are tools and such a template, else
  /// default. UserError that lists the names if it is not there.
  const ChatTemplate& choose(const std::optional<std::string>& name = {},
                             bool has_tools = false) const;
};

/// Reads tokenizer_config.json (chat_template: a string, or a list of names with templates),
/// chat_template.jinja, chat_template.json and additional_chat_templates/*.jinja (or chat_templates/*.jinja) of a folder; the files of their
/// own come first. UserError if a file is none of what it should be; no template at all is none.
ModelTemplates load_templates(const std::filesystem::path& folder);

}  // namespace tessera::chat
