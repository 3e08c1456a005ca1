#include "tessera/nn/attention.h"

#include <ATen/ops/cat.h>

#include "tessera/kernels/rotary.h"

namespace tessera::nn {
namespace {

torch::Tensor rotated(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin) {
  if (!cos.defined()) return x;
  const int64_t width = cos.size(-1), rest = x.size(-1) - width;
  if (rest == 0) return kernels::rotary(x, cos, sin);
  return at::cat({kernels::rotary(x.narrow(-1, 0, width), cos, sin), x.narrow(-1, width, rest)},
                 -1);
}

}  // namespace

AttentionImpl::AttentionImpl(kernels::AttentionOptions options) : options_(std::move(options)) {}

torch::Tensor AttentionImpl::forward(const torch::Tensor& q, const torch::Tensor& k,
                                     const torch::Tensor& v, const Positions& positions,
                                     const torch::Tensor& sinks) {
  const auto& [cos, sin, documents] = positions;
  return core(rotated(q, cos, sin), rotated(k, cos, sin), v, options_, documents, sinks).flatten(2);
}

}  // namespace tessera::nn
