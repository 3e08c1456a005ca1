#include "tessera/documents/encoder.h"

#include <algorithm>
#include <span>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/utf8.h"
#include "tessera/chat/assistant.h"

namespace tessera::documents {
namespace {

namespace fs = std::filesystem;

/// Marks the tokens of each span of `learned`, ascending: from the first that holds a byte of it to the last.
/// Offsets may leave blanks out, so that a token between them may seem to hold nothing.
std::vector<MarkedToken> marked(const text::Encoding& encoding, std::string_view text,
                                std::span<const chat::Span> learned) {
  const auto begins = character_offsets(text);
  const auto& offsets = encoding.offsets;
  std::vector<MarkedToken> tokens(encoding.ids.begin(), encoding.ids.end());
  size_t at = 0;
  for (const auto& span : learned) {
    while (at < tokens.size() && begins.at(offsets[at].end) <= span.begin) ++at;
    size_t end = at;  // behind the last that holds a byte of the span
    for (size_t i = at; i < tokens.size() && begins.at(offsets[i].begin) < span.end; ++i) {
      if (offsets[i].begin < offsets[i].end) end = i + 1;
    }
    for (size_t i = at; i < end; ++i) tokens[i] |= kLearned;
  }
  return tokens;
}

/// What messages and variables say, as opposed to the template.
std::vector<text::ByteRange> said_by_messages(const chat::Rendered& rendered) {
  std::vector<text::ByteRange> ranges;
  for (const auto& run : rendered.runs) {
    const auto& source = rendered.sources[run.source];
    const bool from_input =
        source.message >= 0 || source.field == "tools" || source.field == "documents";
    if (from_input) ranges.push_back({run.begin, run.end});
  }
  return ranges;
}

chat::ModelTemplates templates_beside(const fs::path& tokenizer) {
  const auto folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  return chat::load_templates(folder.empty() ? "." : folder);
}

}  // namespace

DocumentEncoder::DocumentEncoder(const EncoderOptions& options)
    : options_(options),
      tokenizer_(text::load_tokenizer(options.tokenizer)),
      templates_(templates_beside(options.tokenizer)) {
  auto& name = options_.chat_template;
  if (fs::is_regular_file(name)) {  // it is the default from now on
    templates_.by_name.clear();
    templates_.by_name.emplace("default", chat::ChatTemplate(name, read_file(name)));
    name.clear();
  } else if (!name.empty() && !templates_.by_name.contains(name)) {
    user_error("chat_template: {}: no such file, nor a chat template of {}", name,
               options_.tokenizer.string());
  }
}

void DocumentEncoder::check_template() const {
  if (!templates_.by_name.empty()) return;
  user_error(
      "{} has no chat template, which conversations need; set chat_template to a file with one",
      options_.tokenizer.string());
}

const chat::ChatTemplate& DocumentEncoder::template_for(const chat::Inputs& inputs) const {
  const auto& name = options_.chat_template;
  return templates_.choose(name.empty() ? std::nullopt : std::optional(name),
                           !inputs.tools.is_null());
}

text::Encoding DocumentEncoder::tokens_of(const chat::Rendered& rendered) const {
  const auto plain = said_by_messages(rendered);
  return tokenizer_.encode(rendered.text, {.add_special_tokens = false, .plain = plain});
}

std::vector<int64_t> DocumentEncoder::encode_prompt(chat::Inputs inputs) const {
  inputs.variables = templates_.variables;
  inputs.add_generation_prompt = true;
  const auto ids = tokens_of(template_for(inputs).render(inputs)).ids;
  return {ids.begin(), ids.end()};
}

std::optional<int64_t> DocumentEncoder::end_of_turn() const {
  chat::Inputs inputs{.variables = templates_.variables};
  inputs.messages.push_back({{"role", "user"}, {"content", "a"}});
  inputs.messages.push_back({{"role", "assistant"}, {"content", "b"}});
  const auto rendered = template_for(inputs).render(inputs);
  size_t end = 0;  // of the answer
  for (const auto& run : rendered.runs) {
    const auto& source = rendered.sources[run.source];
    if (source.message == 1 && source.field == "content") end = run.end;
  }
  const auto [ids, offsets, type_ids] = tokens_of(rendered);
  const auto begins = character_offsets(rendered.text);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (begins.at(offsets[i].begin) >= end && tokenizer_.is_special(ids[i])) return ids[i];
  }
  return {};
}

std::vector<MarkedToken> DocumentEncoder::encode_text(const Text& text) const {
  const auto whole = text.prompt + text.completion;
  const chat::Span completion{text.prompt.size(), whole.size()};
  const chat::Span all{0, whole.size()};
  const auto encoding = tokenizer_.encode(whole, {.find_special_tokens = false});
  auto tokens =
      marked(encoding, whole, {options_.learn == data::Learn::all ? &all : &completion, 1});
  const auto end = tokenizer_.end_of_text();
  if (end && (tokens.empty() || id_of(tokens.back()) != *end)) tokens.push_back(*end);
  if (end) tokens.back() |= kLearned;
  return tokens;
}

std::vector<MarkedToken> DocumentEncoder::encode_conversation(
    const Conversation& conversation) const {
  auto inputs = conversation.inputs;
  inputs.variables = templates_.variables;
  const auto& chat_template = template_for(inputs);
  const auto rendered = chat_template.render(inputs);
  const auto encoding = tokens_of(rendered);
  if (options_.learn == data::Learn::all) {
    const chat::Span all{0, rendered.text.size()};
    return marked(encoding, rendered.text, {&all, 1});
  }
  return marked(encoding, rendered.text,
                assistant_spans(chat_template, inputs, rendered, {}, conversation.learned));
}

std::vector<MarkedToken> DocumentEncoder::encode(const Example& example) const {
  if (const auto* text = std::get_if<Text>(&example)) return encode_text(*text);
  return encode_conversation(std::get<Conversation>(example));
}

}  // namespace tessera::documents
