#include "tessera/models/adapt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/nn/initialise.h"
#include "tessera/nn/low_rank.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

template <typename Layer>
Layer& layer_at(const LanguageModel& model, const std::string& path) {
  auto* layer = dynamic_cast<Layer*>(nn::find_module(model, path).get());
  TORCH_INTERNAL_ASSERT(layer != nullptr, path, " is of another kind");
  return *layer;
}

/// The squares of the base's weight, summed over each of the outputs begin .. of n.
torch::Tensor squared_norms(const FirstValues& base, const AdaptedModule& module, int64_t begin,
                            int64_t n) {
  constexpr int64_t kNumbersAtOnce = 1 << 20;
  const auto weight = module.path + ".weight";
  auto sums = torch::zeros({n}, torch::kFloat64);
  if (module.inputs_first) {
    const auto row = torch::empty({n});
    for (int64_t i = 0; i < module.inputs; ++i) {
      base(weight, i * module.outputs + begin, row);
      sums += row.to(torch::kFloat64).square();
    }
    return sums;
  }
  const int64_t at_once = std::max<int64_t>(1, kNumbersAtOnce / module.inputs);
  for (int64_t row = 0; row < n; row += at_once) {
    const int64_t rows = std::min(at_once, n - row);
    const auto values = torch::empty({rows * module.inputs});
    base(weight, (begin + row) * module.inputs, values);
    sums.narrow(0, row, rows) +=
        values.view({rows, module.inputs}).to(torch::kFloat64).square().sum(1);
  }
  return sums;
}

/// A and B of a module: two draws in the odd and the even rows of an orthogonal matrix, so that B A is
/// zero and the rows of neither are alike (PEFT's init_lora_weights orthogonal).
struct Orthogonal {
  std::string path;
  torch::Tensor a, b;
};

Orthogonal orthogonal(const AdaptedModule& module, int64_t seed) {
  constexpr double kDivisor = 10;  // as there
  const auto drawn = [&](const char* name, int64_t rows, int64_t columns) {
    auto values = torch::empty({rows, columns});
    nn::fill_portable_normal(values.view({-1}), module.path + name, seed, 1);
    return values.to(torch::kFloat64);
  };
  const int64_t half = module.rank / 2;
  const auto rows =
      std::get<0>(torch::linalg_qr(drawn(".lora_orthogonal", module.rank, module.rank), "reduced"));
  const auto odd = rows.slice(0, 0, module.rank, 2), even = rows.slice(0, 1, module.rank, 2);
  const auto a = drawn(".lora_A", module.inputs, half).mm(odd).t() / kDivisor;
  const auto b = drawn(".lora_B", half, module.outputs).t().mm(even) / kDivisor;
  return {module.path, a.to(torch::kFloat).contiguous(), b.to(torch::kFloat).contiguous()};
}

/// First values of A and B, wherever they are asked for.
class Drawing {
 public:
  Drawing(AdapterInit init, int64_t seed) : init_(init), seed_(seed) {}

  void operator()(const AdaptedModule& module, const std::string& name, int64_t begin,
                  torch::Tensor part) {
    const bool is_a = name.ends_with("_A");
    if (init_ == AdapterInit::orthogonal && !module.embedding) {
      if (last_.path != module.path) last_ = orthogonal(module, seed_);
      part.copy_((is_a ? last_.a : last_.b).view({-1}).narrow(0, begin, part.numel()));
    } else if (is_a == module.embedding) {
      part.zero_();
    } else if (module.embedding) {
      nn::fill_portable_normal(part, name, seed_, 1, begin);
    } else if (init_ == AdapterInit::gaussian) {
      nn::fill_portable_normal(part, name, seed_, 1 / static_cast<double>(module.rank), begin);
    } else {
      // Uniform within 1 / sqrt(inputs): He et al. (ICCV 2015) with a slope of sqrt(5).
      nn::fill_portable(part, name, seed_, 1 / std::sqrt(3 * static_cast<double>(module.inputs)),
                        begin);
    }
  }

 private:
  AdapterInit init_;
  int64_t seed_;
  Orthogonal last_;
};

}  // namespace

void adapt(LanguageModel& model, const AdapterSpec& spec) {
  std::set<std::string> trained;
  for (const auto& parameter : trained_parameters(spec, model.shape())) {
    trained.insert(parameter.name);
  }
  for (const auto& item : model.named_parameters()) {
    item.value().requires_grad_(trained.contains(item.key()));
  }
  for (const auto& module : adapted_modules(spec, model.shape())) {
    const nn::LowRankOptions options{.rank = module.rank,
                                     .scale = module.scale,
                                     .dropout = spec.dropout,
                                     .magnitude = spec.type == AdapterType::dora,
                                     .dropout_name = module.path};
    if (module.embedding) {
      nn::add_low_rank(layer_at<nn::EmbeddingImpl>(model, module.path), options);
    } else {
      nn::add_low_rank(layer_at<nn::LinearImpl>(model, module.path), options);
    }
  }
}

FirstValues adapted_values(const AdapterSpec& spec, const ModelShape& shape, int64_t seed,
                           BaseValues base) {
  std::map<std::string, AdaptedModule> modules;  // by name of a parameter of its adapter
  for (const auto& module : adapted_modules(spec, shape)) {
    for (const auto& parameter : parameters_of(module, spec.type)) modules[parameter.name] = module;
  }
  const auto draw = std::make_shared<Drawing>(spec.init, seed);
  return [modules = std::move(modules), draw, base = std::move(base)](
             const std::string& name, int64_t begin, const torch::Tensor& part) {
    const auto found = modules.find(name);
    if (found == modules.end()) return base.values(name, begin, part);
    const auto& module = found->second;
    if (name.ends_with(".lora_magnitude_vector")) {
      part.copy_(squared_norms(base.begun_with, module, begin, part.numel()).sqrt_());
    } else {
      (*draw)(module, name, begin, part);
    }
  };
}

}  // namespace tessera::models
