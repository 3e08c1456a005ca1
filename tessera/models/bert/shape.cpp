#include "tessera/models/bert/shape.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tessera/models/json_keys.h"

namespace tessera::models {
namespace {

BertHead read_head(const JsonKeys& keys) {
  const auto& list = keys.at("architectures");
  const auto name = list.is_array() && !list.empty() ? list[0] : nlohmann::json();
  if (name == "BertForMaskedLM") return BertHead::masked_lm;
  keys.refuse_unless(name == "BertForSequenceClassification", "architectures",
                     "BertForMaskedLM or BertForSequenceClassification");
  return BertHead::sequence_classification;
}

/// The number of labels: that of id2label, else of num_labels, else two, as in transformers.
int64_t read_num_labels(const JsonKeys& keys) {
  if (!keys.has("id2label")) return keys.size("num_labels", 2);
  const auto& labels = keys.at("id2label");
  if (!labels.is_object() || labels.empty()) keys.wrong("id2label", "a name for each label");
  return static_cast<int64_t>(labels.size());
}

}  // namespace

BertShape read_bert_shape(const std::filesystem::path& config_json) {
  const auto json = read_json_object(config_json, "model_type");
  const JsonKeys keys(config_json.string(), json);
  keys.refuse_unless(keys.text("model_type") == "bert", "model_type", "bert");
  BertShape shape{.head = read_head(keys),
                  .vocab_size = keys.size("vocab_size"),
                  .dim = keys.size("hidden_size"),
                  .num_layers = keys.size("num_hidden_layers"),
                  .num_heads = keys.size("num_attention_heads"),
                  .ffn_dim = keys.size("intermediate_size"),
                  .max_seq_len = keys.size("max_position_embeddings"),
                  .num_token_types = keys.size("type_vocab_size", 2),
                  .num_labels = read_num_labels(keys),
                  .norm_eps = keys.positive("layer_norm_eps", 1e-12)};
  keys.refuse_unless(shape.dim % shape.num_heads == 0, "num_attention_heads",
                     fmt::format("a divisor of hidden_size {}", shape.dim));
  keys.refuse_unless(keys.text("hidden_act", "gelu") == "gelu", "hidden_act",
                     "gelu (the exact form)");
  keys.refuse_unless(keys.text("position_embedding_type", "absolute") == "absolute",
                     "position_embedding_type", "absolute");
  keys.refuse_unless(!keys.flag("is_decoder", false), "is_decoder", "false");
  keys.refuse_unless(!keys.flag("add_cross_attention", false), "add_cross_attention", "false");
  const bool tied = keys.flag("tie_word_embeddings", true);
  keys.refuse_unless(tied || shape.head != BertHead::masked_lm, "tie_word_embeddings", "true");
  return shape;
}

}  // namespace tessera::models
