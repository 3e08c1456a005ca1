// A model's chat template: a conversation in, the text that the model reads out.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/chat/interpreter.h"
#include "tessera/chat/source.h"

namespace tessera::chat {

/// In the order of the file: templates write dicts as they stand.
using Json = nlohmann::ordered_json;

/// What a template is given, under the names that transformers uses.
struct Inputs {
  Json messages = Json::array();
  Json tools = nullptr;
  Json documents = nullptr;
  bool add_generation_prompt = false;
  /// bos_token and others, and what a template takes besides (enable_thinking).
  Json variables = Json::object();
};

struct RenderOptions {
  std::optional<std::time_t> now = {};  ///< for strftime_now; the clock if there is none
  Limits limits = {};
};

/// [begin, end) in bytes of a text.
struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// A conversation as text.
struct Rendered {
  struct Run {
    size_t begin, end;
    SourceId source;  ///< index in `sources`
  };

  std::string text;
  std::vector<Run> runs;  ///< where each byte is from, without gaps
  std::vector<Source> sources;
  std::vector<Span> generated;  ///< what {% generation %} blocks wrote
};

/// The template itself refused with raise_exception: `reason` is what it said.
class TemplateRefusal : public UserError {
 public:
  TemplateRefusal(const std::string& line, std::string reason)
      : UserError(line), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Jinja as published chat templates use it, set as transformers sets it (trim_blocks, lstrip_blocks, loop
/// controls, an immutable sandbox). docs/chat_templates.md lists what there is.
class ChatTemplate {
 public:
  /// UserError with `name` and the line for what is no template, or uses what is not known.
  ChatTemplate(std::string name, std::string_view source);

  /// TemplateRefusal if the template raises; UserError with the template's line for what it cannot do.
  /// Cost: that of the template's steps, which are limited; values are shared, not copied.
  Rendered render(const Inputs& inputs, const RenderOptions& options = {}) const;

  const std::string& name() const { return name_; }
  bool has_generation() const { return has_generation_; }  ///< are there {% generation %} blocks?

 private:
  std::string name_;
  std::shared_ptr<const Block> statements_;
  bool has_generation_ = false;
};

}  // namespace tessera::chat
