#include "tessera/kernels/observed.h"

#include <utility>

namespace tessera::kernels {

Observed::Observed(const char* name,
                   std::initializer_list<std::reference_wrapper<const at::Tensor>> passes) {
  auto observers = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!observers) return;
  record_.emplace(std::move(*observers));
  if (record_->needsInputs()) {
    for (const at::Tensor& tensor : passes) {
      if (tensor.defined()) inputs_.emplace_back(tensor);
    }
  }
  record_->before(name, &inputs_);
}

}  // namespace tessera::kernels
