#include "tessera/checkpoint/formats/gguf/architecture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/models/gemma/shape.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/smollm3/shape.h"
#include "tessera/models/spec.h"

namespace tessera::checkpoint {
namespace {

using models::ModelFamily;
using models::ModelShape;
using models::RopeScalingType;

constexpr std::array kLlamaCppTypes{LlamaCppType{"llama", "llama", true},
                                    LlamaCppType{"mistral", "llama", true},
                                    LlamaCppType{"smollm3", "smollm3", true},
                                    LlamaCppType{"qwen2", "qwen2"},
                                    LlamaCppType{"qwen3", "qwen3"},
                                    LlamaCppType{"olmo2", "olmo2"},
                                    LlamaCppType{"gpt2", "gpt2"},
                                    LlamaCppType{"phi3", "phi3"},
                                    LlamaCppType{"gemma2", "gemma2"},
                                    LlamaCppType{"gemma3_text", "gemma3"}};

std::vector<RopeScalingType> known_scalings(const LlamaCppType& type) {
  if (type.architecture == "phi3") return {RopeScalingType::longrope};
  if (type.architecture == "gemma2" || type.architecture == "gemma3")
    return {RopeScalingType::linear};
  if (type.interleaved)
    return {RopeScalingType::linear, RopeScalingType::yarn, RopeScalingType::llama3};
  return {RopeScalingType::linear, RopeScalingType::yarn};
}

void check_scaling(const ModelShape& shape, const LlamaCppType& type, const std::string& where) {
  if (!shape.rope_scaling) return;
  static const std::map<RopeScalingType, std::string> names = {
      {RopeScalingType::linear, "linear"},
      {RopeScalingType::yarn, "yarn"},
      {RopeScalingType::llama3, "llama3"},
      {RopeScalingType::longrope, "longrope"}};
  const auto known = known_scalings(type);
  if (shape.rope_scaling->type == RopeScalingType::yarn && !shape.rope_scaling->truncate)
    user_error("{}: rope_scaling: llama.cpp's yarn has truncate: true alone", where);
  if (std::ranges::count(known, shape.rope_scaling->type) != 0) return;
  std::vector<std::string> texts;
  for (const auto scaling : known) texts.push_back(names.at(scaling));
  user_error("{}: rope_scaling: llama.cpp's {} has {} alone", where, type.architecture,
             models::either_of(texts));
}

/// Gemma's layers with windows, the divisor of its scores and its caps are fixed by number and size.
void check_gemma(const ModelShape& shape, const LlamaCppType& type, const std::string& where) {
  const auto& facts = shape.own.as<models::gemma::Facts>();
  const bool second = type.architecture == "gemma2";
  const int64_t pattern = second ? 2 : 6;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    if (shape.sliding_layers[static_cast<size_t>(i)] == (i % pattern != pattern - 1)) continue;
    user_error("{}: layer_types: llama.cpp's {} has each {} layer without a window", where,
               type.architecture, second ? "second" : "sixth");
  }
  const bool largest = shape.num_layers == (second ? 46 : 62);
  const int64_t scalar = largest ? shape.dim / shape.num_heads : shape.head_dim;
  if (facts.query_scalar != static_cast<double>(scalar)) {
    user_error("{}: query_pre_attn_scalar: llama.cpp's {} of {} layers has {}, got {}", where,
               type.architecture, shape.num_layers, scalar, facts.query_scalar);
  }
  if (!second) return;
  if (!shape.tie_embeddings)
    user_error("{}: tie_word_embeddings: llama.cpp's gemma2 has no head of its own", where);
  if (facts.attention_softcap == 0 || facts.logits_softcap == 0)
    user_error("{}: attn_logit_softcapping, final_logit_softcapping: llama.cpp's gemma2 caps both",
               where);
}

/// What would compute something else there.
void refuse_what_llama_cpp_lacks(const ModelShape& shape, const LlamaCppType& type,
                                 const std::string& where) {
  check_scaling(shape, type, where);
  constexpr std::array<std::string_view, 4> kWithoutBiases{"qwen3", "olmo2", "gemma2", "gemma3"};
  if ((shape.qkv_bias || shape.out_bias) && std::ranges::count(kWithoutBiases, type.architecture)) {
    user_error("{}: attention_bias: llama.cpp's {} has no biases in its attention", where,
               type.architecture);
  }
  if (shape.family == ModelFamily::olmo2 && shape.tie_embeddings)
    user_error("{}: tie_word_embeddings: llama.cpp's olmo2 has a head of its own alone", where);
  if (shape.family == ModelFamily::gemma) return check_gemma(shape, type, where);
  if (shape.sliding_window != 0 && shape.sliding_window < shape.max_seq_len) {
    user_error("{}: sliding_window: llama.cpp's {} sees all keys, got {} of {}", where,
               type.architecture, shape.sliding_window, shape.max_seq_len);
  }
  if (shape.family == ModelFamily::phi3 && shape.dim != shape.num_heads * shape.head_dim)
    user_error("{}: head_dim: llama.cpp's phi3 has heads as wide as the model together", where);
  if (shape.family != ModelFamily::smollm3) return;
  const auto& rotates = shape.own.as<models::smollm3::Facts>().rotates;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    if (rotates[static_cast<size_t>(i)] == ((i + 1) % 4 != 0)) continue;
    user_error("{}: no_rope_layers: llama.cpp's smollm3 has each fourth layer without positions",
               where);
  }
}

/// The factors by which llama3's scaling divides each frequency (kernels/rotary.cpp has the formula).
std::vector<float> llama3_factors(const ModelShape& shape) {
  const auto& scaling = *shape.rope_scaling;
  const auto original = static_cast<float>(scaling.original_max_seq_len);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const auto factor = static_cast<float>(scaling.factor);
  std::vector<float> factors;
  for (int64_t i = 0; i < shape.head_dim; i += 2) {
    const float turn = static_cast<float>(i) / static_cast<float>(shape.head_dim);
    const float frequency = 1 / std::pow(static_cast<float>(shape.rope_theta), turn);
    const float length = 2 * std::numbers::pi_v<float> / frequency;
    if (length < original / high) {
      factors.push_back(1);
    } else if (length > original / low) {
      factors.push_back(factor);
    } else {
      const float smooth = (original / length - low) / (high - low);
      factors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return factors;
}

GgufValue count(int64_t value) { return gguf_u32(static_cast<uint64_t>(value)); }

void add_positions(const LlamaCppModel& model, const std::string& arch, GgufMetadata& result) {
  const auto& shape = model.shape;
  const bool phi3 = shape.family == ModelFamily::phi3;
  result.emplace_back(arch + ".rope.freq_base", gguf_f32(shape.rope_theta));
  result.emplace_back(
      arch + ".rope.dimension_count",
      count(phi3 ? models::spec_of(shape.family).rotary_width(shape) : shape.head_dim));
  const auto& scaling = shape.rope_scaling;
  if (phi3) {
    result.emplace_back(arch + ".rope.scaling.original_context_length",
                        count(scaling ? scaling->original_max_seq_len : shape.max_seq_len));
    result.emplace_back(arch + ".attention.sliding_window", count(0));
    if (scaling)
      result.emplace_back(arch + ".rope.scaling.attn_factor", gguf_f32(scaling->attention_factor));
    return;
  }
  if (!scaling || scaling->type == RopeScalingType::llama3) return;
  const bool yarn = scaling->type == RopeScalingType::yarn;
  result.emplace_back(arch + ".rope.scaling.type", gguf_string(yarn ? "yarn" : "linear"));
  result.emplace_back(arch + ".rope.scaling.factor", gguf_f32(scaling->factor));
  if (!yarn) return;
  result.emplace_back(arch + ".rope.scaling.original_context_length",
                      count(scaling->original_max_seq_len));
  // llama.cpp multiplies cosines and sines by what the paper has, unless this says otherwise.
  const double usual = 1 + 0.1 * std::log(scaling->factor);
  if (std::abs(scaling->attention_factor / usual - 1) > 1e-6) {
    result.emplace_back(arch + ".rope.scaling.attn_factor",
                        gguf_f32(scaling->attention_factor / usual));
  }
  result.emplace_back(arch + ".rope.scaling.yarn_beta_fast", gguf_f32(scaling->beta_fast));
  result.emplace_back(arch + ".rope.scaling.yarn_beta_slow", gguf_f32(scaling->beta_slow));
}

void add_gemma(const ModelShape& shape, const std::string& arch, GgufMetadata& result) {
  const auto& facts = shape.own.as<models::gemma::Facts>();
  result.emplace_back(arch + ".attention.sliding_window", count(shape.sliding_window));
  if (facts.local_theta != 0)
    result.emplace_back(arch + ".rope.freq_base_swa", gguf_f32(facts.local_theta));
  if (facts.attention_softcap != 0)
    result.emplace_back(arch + ".attn_logit_softcapping", gguf_f32(facts.attention_softcap));
  if (facts.logits_softcap != 0)
    result.emplace_back(arch + ".final_logit_softcapping", gguf_f32(facts.logits_softcap));
}

}  // namespace

LlamaCppModel llama_cpp_model(const nlohmann::json& config, const std::string& where) {
  const auto model_type = config.value("model_type", nlohmann::json());
  const auto* found = std::ranges::find_if(
      kLlamaCppTypes, [&](const auto& known) { return model_type == known.model_type; });
  if (found == kLlamaCppTypes.end()) {
    std::vector<std::string> names;
    for (const auto& known : kLlamaCppTypes) names.emplace_back(known.model_type);
    user_error("{}: GGUF is written of {}, got {}", where, models::either_of(names),
               model_type.dump());
  }
  auto shape = models::model_shape_of(config, where);
  refuse_what_llama_cpp_lacks(shape, *found, where);
  return {std::move(shape), *found};
}

std::vector<GgufFactors> gguf_factors(const ModelShape& shape) {
  if (!shape.rope_scaling) return {};
  const auto& scaling = *shape.rope_scaling;
  if (scaling.type == RopeScalingType::llama3)
    return {{"rope_freqs.weight", llama3_factors(shape)}};
  if (scaling.type != RopeScalingType::longrope) return {};
  const auto floats = [](const std::vector<double>& values) {
    std::vector<float> result;
    for (const double value : values) result.push_back(static_cast<float>(value));
    return result;
  };
  return {{"rope_factors_long.weight", floats(scaling.long_factors)},
          {"rope_factors_short.weight", floats(scaling.short_factors)}};
}

GgufMetadata architecture_metadata(const LlamaCppModel& model) {
  const auto& shape = model.shape;
  const std::string arch(model.kind.architecture);
  const bool gpt2 = shape.family == ModelFamily::gpt2;
  GgufMetadata result{
      {arch + ".block_count", count(shape.num_layers)},
      {arch + ".context_length", count(shape.max_seq_len)},
      {arch + ".embedding_length", count(shape.dim)},
      {arch + ".feed_forward_length", count(shape.ffn_dim)},
      {arch + ".attention.head_count", count(shape.num_heads)},
      {arch + ".attention.head_count_kv", count(shape.num_kv_heads)},
      {arch + ".attention.key_length", count(shape.head_dim)},
      {arch + ".attention.value_length", count(shape.head_dim)},
      {arch + (gpt2 ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
       gguf_f32(shape.norm_eps)},
      {arch + ".vocab_size", count(shape.vocab_size)}};
  if (!gpt2) add_positions(model, arch, result);
  if (shape.family == ModelFamily::gemma) add_gemma(shape, arch, result);
  return result;
}

}  // namespace tessera::checkpoint
