#include "tessera/checkpoint/formats/gguf/types.h"

#include <cstdlib>

namespace tessera::checkpoint {
namespace {

bool whole_blocks(GgmlType type, const TensorInfo& info) {
  return info.shape.back() % ggml_type_info(type).block_values == 0;
}

GgmlType plain_type(GgufFileType file) {
  switch (file) {
    case GgufFileType::f32:
      return GgmlType::f32;
    case GgufFileType::q4_0:
      return GgmlType::q4_0;
    case GgufFileType::q8_0:
      return GgmlType::q8_0;
    case GgufFileType::q4_k_m:
      return GgmlType::q4_k;
    case GgufFileType::bf16:
      return GgmlType::bf16;
    case GgufFileType::f16:
      break;
  }
  return GgmlType::f16;
}

/// The layers whose most sensitive matrices get two bits more.
bool has_more_bits(int64_t layer, int64_t num_layers) {
  const int64_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

GgmlType mixed_type(const std::string& name, const TensorInfo& info, const GgufMix& mix) {
  if (name == "output.weight" || (mix.tied && name == "token_embd.weight"))
    return whole_blocks(GgmlType::q6_k, info) ? GgmlType::q6_k : GgmlType::q8_0;
  const bool values = name.ends_with(".attn_v.weight") || name.ends_with(".attn_qkv.weight");
  const bool down = name.ends_with(".ffn_down.weight");
  GgmlType type = GgmlType::q4_k;
  if (values || down) {
    const int64_t layer = std::strtoll(name.c_str() + name.find('.') + 1, nullptr, 10);
    if (values && mix.few_values) type = GgmlType::q5_k;
    if (has_more_bits(layer, mix.num_layers)) type = GgmlType::q6_k;
  }
  if (whole_blocks(type, info)) return type;
  if (type == GgmlType::q5_k) return GgmlType::q5_1;
  return type == GgmlType::q4_k ? GgmlType::q5_0 : GgmlType::q8_0;
}

}  // namespace

GgmlType gguf_type(const std::string& name, const TensorInfo& info, const GgufMix& mix) {
  const bool matrix = info.shape.size() > 1 && name.ends_with(".weight");
  if (!matrix || name == "position_embd.weight") return GgmlType::f32;
  auto type = plain_type(mix.file);
  if (mix.file == GgufFileType::q4_k_m) type = mixed_type(name, info, mix);
  if (mix.file == GgufFileType::q4_0 && name == "output.weight") type = GgmlType::q8_0;
  return whole_blocks(type, info) ? type : GgmlType::f16;
}

bool is_fallback(GgmlType type, const TensorInfo& info, const GgufMix& mix) {
  return mix.file == GgufFileType::q4_k_m && info.shape.size() > 1 && type != GgmlType::f32 &&
         type != GgmlType::q4_k && type != GgmlType::q5_k && type != GgmlType::q6_k;
}

}  // namespace tessera::checkpoint
