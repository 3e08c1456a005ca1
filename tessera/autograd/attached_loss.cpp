#include "tessera/autograd/attached_loss.h"

#include <torch/csrc/autograd/custom_function.h>

namespace tessera::autograd {
namespace {

struct AttachedLoss : torch::autograd::Function<AttachedLoss> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& /*part*/, const at::Tensor& slope) {
    ctx->saved_data["slope"] = slope;  // not saved as a variable: it may be written until then
    return x;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {grads[0], ctx->saved_data["slope"].toTensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& part, const at::Tensor& slope) {
  return AttachedLoss::apply(x, part, slope);
}

}  // namespace tessera::autograd
