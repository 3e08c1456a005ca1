// A model that goes on with texts, as a request asks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/documents/encoder.h"
#include "tessera/generate/codec.h"
#include "tessera/generate/generate.h"
#include "tessera/inference/model.h"
#include "tessera/inference/settings.h"

namespace tessera::inference {

struct Answer {
  std::string text;
  std::vector<int64_t> tokens;  ///< with the one that ended it
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0, seconds = 0;  ///< until the first token; from there
  int64_t positions = 0;  ///< of the model, if the answer ended as there were no more; else 0
};

/// "ended at the model's 256 positions", where that is so; "" else.
std::string end_line(const Answer& answer);

/// "prompt: 12 tokens in 0.1 s; 100 tokens in 4.0 s, 25.0 a second"
std::string speed_line(const Answer& answer);

/// Every rank makes one and calls the same.
class Session {
 public:
  /// UserError: what load_model refuses; of a chat, a model without tokenizer or template.
  Session(const Request& request, const mesh::DeviceMesh& mesh);

  std::vector<int64_t> tokens_of(const std::string& text) const;
  /// Without what the tokenizer puts around a text.
  std::vector<int64_t> plain_tokens_of(const std::string& text) const;
  /// With what the template writes in front of an answer.
  std::vector<int64_t> tokens_of(const chat::Inputs& conversation) const;

  /// What follows `tokens`; `show` is told each piece once it is whole characters and no stop word,
  /// and answers whether to go on. UserError: more tokens than the model has positions.
  Answer go_on(std::vector<int64_t> tokens, const std::function<bool(const std::string&)>& show);

  /// Not once a text has gone on: its keys and values are kept in it.
  models::LanguageModel& model() { return *stored_.model; }
  /// Made at the first call. UserError: there is no tokenizer.
  const documents::DocumentEncoder& encoder();

 private:
  const Request& request_;
  StoredModel stored_;
  std::unique_ptr<documents::DocumentEncoder> encoder_;  ///< of conversations and other rows
  std::optional<generate::Codec> codec_;
  Settings settings_;
  std::optional<generate::CachedModel> cached_;  ///< once a text goes on
};

}  // namespace tessera::inference
