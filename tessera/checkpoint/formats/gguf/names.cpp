// Names of llama.cpp's tensors, and how they differ from our parameters.
#include <algorithm>
#include <map>

#include "tessera/checkpoint/formats/gguf/architecture.h"
#include "tessera/models/spec.h"

namespace tessera::checkpoint {
namespace {

using models::ModelFamily;
using Names = std::map<std::string_view, std::string_view>;

const Names& outer_names() {
  static const Names names = {{"model.embed_tokens", "token_embd"},
                              {"model.norm", "output_norm"},
                              {"lm_head", "output"},
                              {"transformer.wte", "token_embd"},
                              {"transformer.wpe", "position_embd"},
                              {"transformer.ln_f", "output_norm"}};
  return names;
}

/// A block's modules and their names in GGUF, but for norms whose names mean different places.
const Names& block_names() {
  static const Names names = {{"self_attn.q_proj", "attn_q"},
                              {"self_attn.k_proj", "attn_k"},
                              {"self_attn.v_proj", "attn_v"},
                              {"self_attn.o_proj", "attn_output"},
                              {"self_attn.q_norm", "attn_q_norm"},
                              {"self_attn.k_norm", "attn_k_norm"},
                              {"self_attn.qkv_proj", "attn_qkv"},
                              {"mlp.gate_proj", "ffn_gate"},
                              {"mlp.up_proj", "ffn_up"},
                              {"mlp.gate_up_proj", "ffn_up"},
                              {"mlp.down_proj", "ffn_down"},
                              {"input_layernorm", "attn_norm"},
                              {"pre_feedforward_layernorm", "ffn_norm"},
                              {"post_feedforward_layernorm", "post_ffw_norm"},
                              {"ln_1", "attn_norm"},
                              {"attn.c_attn", "attn_qkv"},
                              {"attn.c_proj", "attn_output"},
                              {"ln_2", "ffn_norm"},
                              {"mlp.c_fc", "ffn_up"},
                              {"mlp.c_proj", "ffn_down"}};
  return names;
}

/// "self_attn.q_proj.weight" is "attn_q.weight".
std::string renamed(std::string_view parameter, const Names& names, bool norms_results) {
  const auto point = parameter.rfind('.');
  const auto module = parameter.substr(0, point);
  const auto end = std::string(parameter.substr(point));
  if (module == "post_attention_layernorm")
    return (norms_results ? "post_attention_norm" : "ffn_norm") + end;
  return std::string(names.at(module)) + end;
}

GgufChange change_of(const std::string& parameter, const LlamaCppModel& model) {
  const auto family = model.shape.family;
  const bool rotated =
      parameter.starts_with("self_attn.q_proj.") || parameter.starts_with("self_attn.k_proj.");
  if (model.kind.interleaved && rotated) return GgufChange::interleaved;
  if (family == ModelFamily::gemma && parameter.ends_with("norm.weight"))
    return GgufChange::one_added;
  const bool product = parameter.find(".c_") != std::string::npos;
  if (family == ModelFamily::gpt2 && product && parameter.ends_with(".weight"))
    return GgufChange::transposed;
  return GgufChange::none;
}

}  // namespace

std::vector<GgufName> gguf_names(const LlamaCppModel& model) {
  const auto& spec = models::spec_of(model.shape.family);
  const auto parameters = spec.parameters(model.shape);
  std::vector<GgufName> result;
  for (const auto* part : {&parameters.embedding, &parameters.head}) {
    for (const auto& parameter : *part) {
      const auto& name = parameter.name;
      result.push_back(
          {renamed(name, outer_names(), spec.norms_results), {name}, change_of(name, model)});
    }
  }
  for (int64_t layer = 0; layer < model.shape.num_layers; ++layer) {
    const auto inside = fmt::format("{}{}.", parameters.block_prefix, layer);
    for (const auto& parameter : parameters.block) {
      const auto& name = parameter.name;
      const auto fused = std::ranges::find_if(spec.fused, [&](const auto& together) {
        return std::ranges::count(together.parts, name) != 0;
      });
      const bool alone = fused == spec.fused.end();
      if (!alone && fused->parts.front() != name) continue;  // comes with the first
      const auto& stored = alone ? name : fused->stored;
      GgufName entry{
          fmt::format("blk.{}.{}", layer, renamed(stored, block_names(), spec.norms_results)),
          {},
          change_of(name, model)};
      if (alone) entry.ours = {inside + name};
      if (!alone) {
        for (const auto& part : fused->parts) entry.ours.push_back(inside + part);
      }
      result.push_back(std::move(entry));
    }
  }
  return result;
}

}  // namespace tessera::checkpoint
