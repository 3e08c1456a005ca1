#include "tessera/nn/dropout.h"

#include <utility>

#include "tessera/base/portable_numbers.h"
#include "tessera/kernels/dropout.h"
#include "tessera/nn/recomputation.h"

namespace tessera::nn {
namespace {

thread_local std::optional<RandomContext> current_context;

}  // namespace

RandomScope::RandomScope(const std::optional<RandomContext>& context)
    : before_(std::exchange(current_context, context)) {}

RandomScope::~RandomScope() { current_context = before_; }

const std::optional<RandomContext>& RandomScope::current() { return current_context; }

bool trains(const Hookable& module) {
  return module.is_training() &&
         (torch::GradMode::is_enabled() || RandomScope::current() || Recomputation::runs_again());
}

const RandomContext& random_context(const std::string& layer) {
  const auto& context = RandomScope::current();
  TORCH_CHECK_VALUE(context, layer,
                    ": expected a RandomScope around a training forward; make one per "
                    "micro-batch, or call eval()");
  return *context;
}

DropoutImpl::DropoutImpl(std::string name, double probability)
    : layer_(std::move(name)), probability_(probability) {}

torch::Tensor DropoutImpl::forward(const torch::Tensor& x) {
  if (probability_ == 0 || !trains(*this)) return x;
  const auto& context = random_context(layer_);
  const int64_t row_size = x.size(0) == 0 ? 0 : x.numel() / x.size(0);
  kernels::DropoutKey key{.seed = context.seed,
                          .step = context.step,
                          .layer = name_key(layer_),
                          .first_position = (context.first_row * parts_ + part_) * row_size};
  if (parts_ > 1) key.row = row_size, key.row_stride = row_size * parts_;
  if (total_ > 0) {
    key.row = x.size(-1), key.row_stride = total_;
    key.first_position = context.first_row * (row_size / key.row * total_) + first_;
  }
  return kernels::dropout(x, probability_, key);
}

}  // namespace tessera::nn
