// The shape of a BERT encoder (Devlin et al., 2019), as its config.json says.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::models {

/// What stands on the encoder: logits of tokens, or of a whole sequence.
enum class BertHead { masked_lm, sequence_classification };

struct BertShape {
  BertHead head = BertHead::masked_lm;
  int64_t vocab_size = 30522;
  int64_t dim = 768;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t ffn_dim = 3072;
  int64_t max_seq_len = 512;    ///< rows of the position table
  int64_t num_token_types = 2;  ///< rows of the token type table
  int64_t num_labels = 2;       ///< sequence_classification
  double norm_eps = 1e-12;

  bool operator==(const BertShape&) const = default;
};

/// Reads a Hugging Face config.json with model_type bert whose first architecture is
/// BertForMaskedLM or BertForSequenceClassification. UserError names file, key and what was
/// expected, and refuses by name what is not built (decoders, other activations, untied heads).
BertShape read_bert_shape(const std::filesystem::path& config_json);

}  // namespace tessera::models
