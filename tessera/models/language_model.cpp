#include "tessera/models/language_model.h"

#include "tessera/models/spec.h"
#include "tessera/nn/initialise.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {

#define TESSERA_FAMILY(name)                                          \
  std::shared_ptr<LanguageModel> make_##name(const ModelShape& shape, \
                                             const torch::TensorOptions& options);
#include "tessera/models/families.def"
#undef TESSERA_FAMILY

std::shared_ptr<LanguageModel> make_language_model(const ModelShape& shape,
                                                   const torch::TensorOptions& options) {
  switch (shape.family) {
#define TESSERA_FAMILY(name) \
  case ModelFamily::name:    \
    return make_##name(shape, options);
#include "tessera/models/families.def"
#undef TESSERA_FAMILY
  }
  TORCH_INTERNAL_ASSERT(false, "no such family");
}

std::optional<int64_t> window_of(const ModelShape& shape, int64_t layer) {
  return spec_of(shape.family).window(shape, layer);
}

torch::Tensor LanguageModel::logits(const torch::Tensor& ids, const torch::Tensor& documents) {
  return loss(ids, torch::Tensor(), 1.0, documents);
}

torch::Tensor LanguageModel::loss(const torch::Tensor& ids, const torch::Tensor& targets,
                                  const kernels::TokenLoss& loss, const torch::Tensor& documents) {
  const RowLayout rows{.seq_len = ids.size(1), .documents = documents};
  return head(run_layers(embed(ids, rows), 0, shape_.num_layers, rows), targets, loss);
}

std::vector<std::string> LanguageModel::numbered(const std::string& prefix, int64_t count) {
  std::vector<std::string> paths;
  for (int64_t i = 0; i < count; ++i) paths.push_back(prefix + std::to_string(i));
  return paths;
}

std::vector<nn::Hookable*> LanguageModel::blocks() {
  std::vector<nn::Hookable*> blocks;
  for (const auto& path : layout().layers) {
    if (const auto block = nn::find_module(*this, path)) {
      blocks.push_back(dynamic_cast<nn::Hookable*>(block.get()));
    }
  }
  return blocks;
}

void initialise_part(const LanguageModel& model, const std::string& name, int64_t dims,
                     int64_t seed, double std, int64_t begin, const torch::Tensor& part) {
  const auto initial = model.initial(name, dims, std);
  if (initial.constant) {
    part.fill_(initial.value);
  } else if (part.scalar_type() == torch::kFloat32 && part.is_cpu()) {
    nn::fill_portable(part, name, seed, initial.value, begin);
  } else {
    const auto values = torch::empty(part.sizes(), torch::kFloat32);
    nn::fill_portable(values, name, seed, initial.value, begin);
    part.copy_(values);
  }
}

void initialise(LanguageModel& model, int64_t seed, double std) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    initialise_part(model, item.key(), item.value().dim(), seed, std, 0,
                    item.value().detach().view({-1}));
  }
}

}  // namespace tessera::models
