#include "tessera/train/pissa.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/held_matrices.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/nn/initialise.h"

namespace tessera::train {
namespace {

using models::AdaptedModule;

/// The largest singular values and their vectors of a matrix [M, N].
struct Singular {
  torch::Tensor u, s, v;  ///< [M, R], [R], [R, N]
};

Singular exact(const torch::Tensor& matrix, int64_t rank) {
  const auto [u, s, v] = torch::linalg_svd(matrix, /*full_matrices=*/false);
  return {u.narrow(1, 0, rank), s.narrow(0, 0, rank), v.narrow(0, 0, rank)};
}

/// Iterates on whichever of rows and columns are fewer, like torch.svd_lowrank.
Singular iterated(const torch::Tensor& matrix, const torch::Tensor& start, int64_t iterations) {
  const auto basis = [](const torch::Tensor& columns) {
    return std::get<0>(torch::linalg_qr(columns, "reduced"));
  };
  auto q = basis(matrix.mm(start));  // [M, R]
  for (int64_t i = 0; i < iterations; ++i) q = basis(matrix.mm(basis(matrix.t().mm(q))));
  const auto [u, s, v] = torch::linalg_svd(q.t().mm(matrix), /*full_matrices=*/false);
  return {q.mm(u), s, v};
}

Singular largest(const torch::Tensor& weight, const AdaptedModule& module, int64_t iterations,
                 int64_t seed) {
  if (iterations == 0) return exact(weight, module.rank);
  const bool is_wide = module.outputs < module.inputs;
  const auto matrix = is_wide ? weight.t() : weight;
  const auto start = torch::empty({matrix.size(1), module.rank});
  nn::fill_portable_normal(start.view({-1}), module.path + ".lora_pissa", seed, 1);
  auto found = iterated(matrix, start, iterations);
  if (is_wide) return {found.v.t(), found.s, found.u.t()};
  return found;
}

/// A [rank, inputs] and B [outputs, rank], one behind the other.
void factors(const models::AdapterSpec& spec, const AdaptedModule& module, int64_t seed,
             const checkpoint::TensorSource& base, torch::Tensor to) {
  auto weight = checkpoint::read_tensor(base, module.path + ".weight").to(torch::kFloat32);
  if (module.inputs_first) weight = weight.t();
  if (!weight.isfinite().all().item<bool>()) {
    user_error("{}: {}: expected finite numbers for adapter.init pissa; set it to kaiming",
               base.path().string(), module.path);
  }
  auto found = largest(weight, module, spec.pissa_iterations, seed);
  // Either sign of a pair of vectors is right; one of them is everybody's.
  const auto at_most = found.v.abs().argmax(1, /*keepdim=*/true);
  const auto signs = found.v.gather(1, at_most).sign();  // [R, 1]
  found.v = found.v * signs, found.u = found.u * signs.t();
  const auto root = (found.s / module.scale).sqrt();
  const int64_t of_a = module.rank * module.inputs;
  to.narrow(0, 0, of_a).copy_((root.unsqueeze(1) * found.v).flatten());
  to.narrow(0, of_a, to.numel() - of_a).copy_((found.u * root).flatten());
}

/// Settings that name these modules alone, with their ranks and scales.
models::AdapterSpec spec_of(const models::AdapterSpec& spec,
                            const std::vector<AdaptedModule>& modules) {
  models::AdapterSpec own{.type = models::AdapterType::lora,
                          .rank = spec.rank,
                          .alpha = spec.alpha,
                          .rslora = spec.rslora};
  for (const auto& module : modules) {
    own.targets.push_back(module.path);
    if (module.rank != spec.rank) own.rank_pattern.emplace_back(module.path, module.rank);
    if (module.alpha != spec.alpha) own.alpha_pattern.emplace_back(module.path, module.alpha);
  }
  return own;
}

}  // namespace

checkpoint::AdapterPart pissa_start(const models::AdapterSpec& spec,
                                    const models::ModelShape& shape, int64_t seed,
                                    const checkpoint::TensorSource& base, const mesh::Axis& axis) {
  const torch::NoGradGuard no_grad;
  auto modules = models::adapted_modules(spec, shape);
  std::erase_if(modules, [](const AdaptedModule& module) { return module.embedding; });
  if (modules.empty()) {
    user_error(
        "adapter.init: pissa takes singular values of linear layers, of which "
        "adapter.targets name none; set it to kaiming");
  }
  std::vector<torch::Tensor> found;
  for (const auto& module : modules) {
    found.push_back(torch::empty({module.rank * (module.inputs + module.outputs)}));
  }
  const auto size = static_cast<size_t>(axis.size());
  checkpoint::run_on_all(axis, [&] {
    for (size_t i = static_cast<size_t>(axis.rank()); i < modules.size(); i += size) {
      factors(spec, modules[i], seed, base, found[i]);
    }
    return "";
  });
  const auto held = std::make_shared<checkpoint::HeldMatrices>("PiSSA's start");
  for (size_t i = 0; i < modules.size(); ++i) {
    const auto& module = modules[i];
    axis.broadcast(found[i], static_cast<int>(i % size)).wait();
    const auto* values = found[i].const_data_ptr<float>();
    const auto* of_b = values + module.rank * module.inputs;
    held->add(module.path + ".lora_A", {module.rank, module.inputs}, {values, of_b});
    held->add(module.path + ".lora_B", {module.outputs, module.rank},
              {of_b, values + found[i].numel()});
  }
  return {.spec = spec_of(spec, modules), .tensors = held, .subtracts = true};
}

}  // namespace tessera::train
