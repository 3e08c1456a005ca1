// What a row says as tokens, and which of them are learned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/chat/load.h"
#include "tessera/documents/example.h"
#include "tessera/text/tokenizer.h"

namespace tessera::documents {

/// A token and, in the highest bit, whether it is learned.
using MarkedToken = uint32_t;
inline constexpr MarkedToken kLearned = MarkedToken{1} << 31;
constexpr int64_t id_of(MarkedToken token) { return token & ~kLearned; }
constexpr bool is_learned(MarkedToken token) { return (token & kLearned) != 0; }

struct EncoderOptions {
  std::filesystem::path tokenizer;  ///< a model's folder, or a tokenizer's file
  /// A file with a chat template, or the name of one of the model's; "": the model's default.
  std::string chat_template = {};
  data::Learn learn = data::Learn::assistant;
};

/// Encodes rows. Threads may share it.
///
/// A conversation is rendered by the model's template and tokenised once. Learned is each token that
/// holds a byte of what the assistant says, by the provenance of these bytes (chat/assistant.h).
/// What messages say never becomes a special token; only the template's own words do. A text is
/// tokenised with what the tokenizer puts around it, and ended by its end of text; its prompt is not
/// learned.
class DocumentEncoder {
 public:
  explicit DocumentEncoder(const EncoderOptions& options);

  void check_template() const;  ///< UserError if there is none

  /// UserError: what the template or the tokenizer refuses.
  std::vector<MarkedToken> encode(const Example& example) const;

  /// A conversation with what the template writes in front of an answer.
  std::vector<int64_t> encode_prompt(chat::Inputs inputs) const;
  /// The special token that the template writes behind an answer; none if it writes another thing.
  std::optional<int64_t> end_of_turn() const;

  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  std::string tokenizer_path() const { return options_.tokenizer.string(); }
  data::Learn learn() const { return options_.learn; }

 private:
  std::vector<MarkedToken> encode_text(const Text& text) const;
  std::vector<MarkedToken> encode_conversation(const Conversation& conversation) const;
  const chat::ChatTemplate& template_for(const chat::Inputs& inputs) const;
  text::Encoding tokens_of(const chat::Rendered& rendered) const;

  EncoderOptions options_;
  text::Tokenizer tokenizer_;
  chat::ModelTemplates templates_;
};

}  // namespace tessera::documents
