// Attention on a GPU by the kernels that LibTorch has of cuDNN and of FlashAttention-2 (Dao, 2023), which store no
// [T, S] matrix and need no mask.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::kernels {

/// The rule of one call; as AttentionOptions has it.
struct DeviceAttentionRule {
  double scale = 1;
  bool causal = true;
  std::optional<int64_t> window;
  at::Tensor documents;  ///< int64 [N, 2] on the host, or undefined
};

/// Are q [B, T, H, E] and what is to be done with it for these kernels? bfloat16 and float16, E a multiple of 8 up to
/// 256.
bool takes_device_attention(const at::Tensor& q, bool has_softcap_or_sinks);

/// To be called in the backward of a kernel of attention: throws under create_graph = true.
void check_first_derivative();

/// The same as attention() of kernels/attention.h: [B, T, H, E], contiguous. Heads of keys are not repeated. What is in no document
/// is computed among itself; its gradients must be zero. Once differentiable. Nothing stops the host but the first use of
/// a table of documents, which is copied to the device.
at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const DeviceAttentionRule& rule);

}  // namespace tessera::kernels
