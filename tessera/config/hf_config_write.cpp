#include <map>
#include <nlohmann/json.hpp>

#include "tessera/config/hf_config.h"

namespace tessera::config {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson rope_scaling_json(const std::optional<RopeScaling>& scaling) {
  if (!scaling) return nullptr;
  const auto& s = *scaling;
  OrderedJson json{{"factor", s.factor}};
  switch (s.type) {
    case RopeScalingType::linear:
      json["rope_type"] = "linear";
      break;
    case RopeScalingType::dynamic:
      json["rope_type"] = "dynamic";
      break;
    case RopeScalingType::yarn:
      json["rope_type"] = "yarn";
      json["original_max_position_embeddings"] = s.original_max_seq_len;
      json["attention_factor"] = s.attention_factor;
      json["beta_fast"] = s.beta_fast;
      json["beta_slow"] = s.beta_slow;
      json["truncate"] = s.truncate;
      break;
    case RopeScalingType::llama3:
      json["rope_type"] = "llama3";
      json["original_max_position_embeddings"] = s.original_max_seq_len;
      json["low_freq_factor"] = s.low_freq_factor;
      json["high_freq_factor"] = s.high_freq_factor;
      break;
  }
  return json;
}

OrderedJson gpt2_json(const ModelShape& s) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", s.vocab_size},
          {"n_positions", s.max_seq_len},
          {"n_embd", s.dim},
          {"n_layer", s.num_layers},
          {"n_head", s.num_heads},
          {"n_inner", s.ffn_dim},
          {"activation_function", "gelu_new"},
          {"embd_pdrop", s.dropout},
          {"resid_pdrop", s.dropout},
          {"attn_pdrop", 0.0},
          {"layer_norm_epsilon", s.norm_eps},
          {"tie_word_embeddings", s.tie_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr}};
}

void add_window(const ModelShape& s, const std::string& type, OrderedJson& json) {
  const OrderedJson window =
      s.sliding_window == 0 ? OrderedJson(nullptr) : OrderedJson(s.sliding_window);
  if (type == "mistral") json["sliding_window"] = window;
  if (type != "qwen2" && type != "qwen3") return;
  json["use_sliding_window"] = s.sliding_window != 0;
  json["sliding_window"] = window;
  json["max_window_layers"] = s.sliding_window == 0 ? s.num_layers : s.num_full_layers;
}

OrderedJson llama_json(const ModelShape& s) {
  static const std::map<std::string, std::string> kArchitectures = {
      {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"}};
  const auto type = hf_model_type(s);
  OrderedJson json{{"architectures", {kArchitectures.at(type)}},
                   {"model_type", type},
                   {"vocab_size", s.vocab_size},
                   {"hidden_size", s.dim},
                   {"intermediate_size", s.ffn_dim},
                   {"num_hidden_layers", s.num_layers},
                   {"num_attention_heads", s.num_heads},
                   {"num_key_value_heads", s.num_kv_heads},
                   {"head_dim", s.head_dim},
                   {"hidden_act", "silu"},
                   {"max_position_embeddings", s.max_seq_len},
                   {"rms_norm_eps", s.norm_eps},
                   {"rope_theta", s.rope_theta},
                   {"rope_scaling", rope_scaling_json(s.rope_scaling)},
                   {"attention_dropout", 0.0},
                   {"tie_word_embeddings", s.tie_embeddings},
                   {"bos_token_id", nullptr},
                   {"eos_token_id", nullptr}};
  if (type == "llama" || type == "qwen3") json["attention_bias"] = s.out_bias;
  if (type == "llama") json["mlp_bias"] = s.mlp_bias;
  add_window(s, type, json);
  return json;
}

}  // namespace

std::string hf_model_type(const ModelShape& s) {
  if (s.family == ModelFamily::gpt2) return "gpt2";
  if (s.qk_norm) return "qwen3";
  if (s.qkv_bias != s.out_bias) return "qwen2";
  return s.sliding_window != 0 ? "mistral" : "llama";
}

OrderedJson to_hf_config(const ModelShape& s) {
  return s.family == ModelFamily::gpt2 ? gpt2_json(s) : llama_json(s);
}

}  // namespace tessera::config
