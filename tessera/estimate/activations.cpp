#include "tessera/estimate/activations.h"

namespace tessera::estimate {
namespace {

using config::ModelFamily;
using config::ModelShape;
using config::RunConfig;

constexpr int64_t kFloat = 4;

/// Under autocast some are in 16 bits and some in float32: counted as if all were.
int64_t compute_bytes(const config::PrecisionSection& precision) {
  return precision.compute == "fp32" || precision.autocast ? 4 : 2;
}

/// Numbers per token: those in the dtype of computation, and those always in float32.
struct Numbers {
  int64_t values = 0, floats = 0;
};

struct BlockNumbers {
  Numbers kept;        ///< by autograd, without checkpointing
  Numbers selective;   ///< inputs, results of products, output and log-sum-exp of attention
  Numbers recomputed;  ///< from those, by the backward of a selective block
  int64_t inside = 0;  ///< gradients of the widest operator, the activation function
};

BlockNumbers numbers_of(const ModelShape& s) {
  const int64_t d = s.dim, f = s.ffn_dim, h = s.num_heads;
  const int64_t q = h * s.head_dim, k = s.num_kv_heads * s.head_dim;
  if (s.family == ModelFamily::gpt2) {
    return {.kept = {8 * d + 2 * f, h + 4},
            .selective = {6 * d + f, h},
            .recomputed = {3 * d + f, 4},
            .inside = f};
  }
  // Norms of heads keep what they norm, and a number for each head.
  const Numbers head_norms = s.qk_norm ? Numbers{q + k, h + s.num_kv_heads} : Numbers{};
  return {.kept = {4 * d + 2 * q + 2 * k + 3 * f + head_norms.values, h + 2 + head_norms.floats},
          .selective = {2 * d + 2 * q + 2 * k + 2 * f, h},
          .recomputed = {3 * d + q + k + f + head_norms.values, 2 + head_norms.floats},
          .inside = 2 * f};
}

int64_t bytes_of(const Numbers& numbers, int64_t width) {
  return numbers.values * width + numbers.floats * kFloat;
}

}  // namespace

bool is_checkpointed(const config::MemorySection& section, int64_t index) {
  return section.checkpointing != "none" && index % section.checkpoint_every == 0;
}

int64_t stream_bytes(const config::PrecisionSection& precision, const ModelShape& shape) {
  return shape.dim * compute_bytes(precision);
}

BlockActivations block_activations(const RunConfig& config, const ModelShape& shape,
                                   bool checkpointed) {
  const int64_t width = compute_bytes(config.precision);
  const auto numbers = numbers_of(shape);
  const int64_t all = bytes_of(numbers.kept, width), stream = shape.dim * width;
  BlockActivations result{.kept = all, .inside = numbers.inside * width};
  result.working = stream;  // the gradient of the block's output
  if (!checkpointed) return result;
  result.working += stream;  // that output, made again
  if (config.memory.checkpointing == "full") {
    result.kept = stream;
    result.working += all - stream;
  } else {
    result.kept = bytes_of(numbers.selective, width);
    result.working += bytes_of(numbers.recomputed, width) + shape.num_heads * kFloat;
  }
  return result;
}

int64_t kept_activation_bytes(const RunConfig& config, const ModelShape& shape, int64_t tokens) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    bytes += block_activations(config, shape, is_checkpointed(config.memory, i)).kept;
  }
  // Beside the blocks: the last one's output, and the gradient of the last norm's output.
  const int64_t last_norm = (shape.family == ModelFamily::gpt2 ? 2 : 1) * kFloat;
  return tokens * (bytes + 2 * stream_bytes(config.precision, shape) + last_norm);
}

}  // namespace tessera::estimate
