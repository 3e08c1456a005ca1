#include "tessera/kernels/dropout.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/apply.h"
#include "tessera/kernels/fused.h"
#include "tessera/kernels/reference.h"

namespace tessera::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor dropped(const at::Tensor& x, double probability, DropoutKey key) {
  auto y = at::empty_like(x);
  if (can_fuse({x})) {
    drop(x, y, probability, key);
    return y;
  }
  if (key.row == 0) return dropout_reference(x, probability, key);
  const auto from = x.view({-1, key.row}), to = y.view({-1, key.row});
  const int64_t stride = key.row_stride;
  key.row = key.row_stride = 0;
  for (int64_t i = 0; i < from.size(0); ++i, key.first_position += stride) {
    to[i].copy_(dropout_reference(from[i], probability, key));
  }
  return y;
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double probability,
                            const DropoutKey& key) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->saved_data["probability"] = probability;
    context->saved_data["key"] = std::vector<int64_t>{static_cast<int64_t>(key.seed),
                                                      key.step,
                                                      static_cast<int64_t>(key.layer),
                                                      key.first_position,
                                                      key.row,
                                                      key.row_stride};
    return dropped(x, probability, key);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto key = context->saved_data["key"].toIntVector();
    return {dropped(gradients[0].contiguous(), context->saved_data["probability"].toDouble(),
                    {.seed = static_cast<uint64_t>(key[0]),
                     .step = key[1],
                     .layer = static_cast<uint64_t>(key[2]),
                     .first_position = key[3],
                     .row = key[4],
                     .row_stride = key[5]}),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double probability, const DropoutKey& key) {
  TORCH_CHECK_VALUE(probability >= 0 && probability < 1,
                    "dropout: expected a probability of at least 0 and below 1, got ", probability);
  if (probability == 0) return x;
  return autograd::apply<Dropout>(x.contiguous(), probability, key);
}

}  // namespace tessera::kernels
