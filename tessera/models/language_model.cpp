#include "tessera/models/language_model.h"

#include "tessera/models/gpt2.h"
#include "tessera/models/llama.h"
#include "tessera/nn/initialise.h"

namespace tessera::models {

std::shared_ptr<LanguageModel> make_language_model(const config::ModelShape& shape,
                                                   const torch::TensorOptions& options) {
  if (shape.family == config::ModelFamily::gpt2) return std::make_shared<Gpt2>(shape, options);
  return std::make_shared<Llama>(shape, options);
}

void initialise(LanguageModel& model, int64_t seed, double std) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const auto& name = item.key();
    auto& parameter = item.value();
    const auto initial = model.initial(name, parameter.dim(), std);
    if (initial.constant) {
      parameter.fill_(initial.value);
    } else {
      nn::fill_portable(parameter, name, seed, initial.value);
    }
  }
}

}  // namespace tessera::models
