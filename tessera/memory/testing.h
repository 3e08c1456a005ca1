// A Llama block of our layers and kernels, for tests and benchmarks (models/ is a row below), and drives with little
// memory before them.
#pragma once

#include <ATen/ops/dropout.h>

#include <filesystem>
#include <memory>
#include <tuple>
#include <vector>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/attention.h"
#include "tessera/kernels/rotary.h"
#include "tessera/nn/layers.h"
#include "tessera/offload/stored_stack.h"

namespace tessera::memory {

struct BlockShape {
  int64_t dim = 16, heads = 4, key_heads = 2, inner = 24;
  double dropout = 0;
  int64_t head_dim() const { return dim / heads; }
};

struct BlockImpl : nn::Hookable {
  explicit BlockImpl(const BlockShape& shape_)
      : shape(shape_),
        q(shape.dim, shape.dim),
        k(shape.dim, shape.key_heads * shape.head_dim()),
        v(shape.dim, shape.key_heads * shape.head_dim()),
        o(shape.dim, shape.dim),
        gate(shape.dim, shape.inner),
        up(shape.dim, shape.inner),
        down(shape.inner, shape.dim),
        norm1(shape.dim, 1e-5),
        norm2(shape.dim, 1e-5) {
    register_module("q", q), register_module("k", k), register_module("v", v);
    register_module("o", o), register_module("gate", gate), register_module("up", up);
    register_module("down", down), register_module("norm1", norm1), register_module("norm2", norm2);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.dim() == 1 ? parameter.uniform_(0.5, 1.5) : parameter.normal_(0, 0.2);
    }
  }

  /// x [B, T, D]; cos, sin [T, head_dim]
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cos,
                        const torch::Tensor& sin) {
    const auto batch = x.size(0), seq_len = x.size(1);
    const auto heads = [&](const torch::Tensor& y) {
      return y.view({batch, seq_len, -1, shape.head_dim()});
    };
    const auto n = norm1(x);
    const auto attended =
        x + dropped(o(kernels::attention(kernels::rotary(heads(q(n)), cos, sin),
                                         kernels::rotary(heads(k(n)), cos, sin), heads(v(n)))
                          .view({batch, seq_len, shape.dim})));
    const auto m = norm2(attended);
    return attended + dropped(down(kernels::swiglu(gate(m), up(m))));
  }

  torch::Tensor dropped(const torch::Tensor& y) const {
    return shape.dropout > 0 ? at::dropout(y, shape.dropout, is_training()) : y;
  }

  BlockShape shape;
  nn::Linear q, k, v, o, gate, up, down;
  nn::RMSNorm norm1, norm2;
};
using Block = nn::Hooked<BlockImpl>;

/// `count` blocks, the same at every call.
inline std::vector<Block> make_blocks(int64_t count, const BlockShape& shape) {
  torch::manual_seed(7);
  std::vector<Block> blocks;
  for (int64_t i = 0; i < count; ++i) blocks.emplace_back(shape);
  return blocks;
}

inline std::vector<nn::Hookable*> hookables(std::vector<Block>& blocks) {
  std::vector<nn::Hookable*> list;
  for (auto& block : blocks) list.push_back(block.get());
  return list;
}

inline torch::Tensor run_blocks(std::vector<Block>& blocks, torch::Tensor x) {
  const auto [cos, sin] = kernels::rotary_tables(x.size(1), blocks[0]->shape.head_dim());
  for (auto& block : blocks) x = block(x, cos, sin);
  return x;
}

/// Four pages of memory before a file in `folder`, which may be removed at once.
inline std::shared_ptr<offload::StoredStack> small_stack(const std::filesystem::path& folder) {
  constexpr int64_t kBlock = 4096;
  return std::make_shared<offload::StoredStack>(offload::StorageOptions{
      .space = {.paths = {folder}, .block_bytes = kBlock, .any_file_system = true},
      .host_memory = 4 * kBlock});
}

}  // namespace tessera::memory
