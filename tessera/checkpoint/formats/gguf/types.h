// What each tensor of a GGUF file is stored as.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/checkpoint/formats/gguf/blocks.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// What most of a file is, by llama.cpp's numbers (general.file_type).
enum class GgufFileType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 7, q4_k_m = 15, bf16 = 32 };

/// What llama.cpp's choice of a type depends on.
struct GgufMix {
  GgufFileType file = GgufFileType::f16;
  int64_t num_layers = 1;
  bool tied = false;  ///< the table of the embeddings is the head's, too
  /// llama.cpp's "70B": 80 layers of Qwen 2, or of Llama with fewer heads of values than of queries
  bool few_values = false;
};

/// Norms, biases and tables of positions are F32, matrices what the file is, but for these:
///   q4_0    the head is Q8_0
///   q4_k_m  as llama.cpp mixes it: Q6_K for the head and, in half of the layers (the first and the
///           last eighth, each third between), for values and the feed-forward's second matrix; Q5_K
///           for other values where these are few; Q4_K for the others
/// Rows that are no whole blocks of 256: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K; of 32: F16.
GgmlType gguf_type(const std::string& name, const TensorInfo& info, const GgufMix& mix);

/// Is `type` what gguf_type falls back to for a matrix of q4_k_m?
bool is_fallback(GgmlType type, const TensorInfo& info, const GgufMix& mix);

}  // namespace tessera::checkpoint
