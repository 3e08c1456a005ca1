#include "tessera/models/mixture_spec.h"

#include <fmt/format.h>

#include <vector>

namespace tessera::models {

void add_mixture(const ModelShape& s, const MixtureNames& names, ParameterSpecs& parameters) {
  if (s.experts.num == 0) return;
  auto& block = parameters.block;
  std::erase_if(block, [](const auto& parameter) { return parameter.name.starts_with("mlp."); });
  const auto add_gated = [&](const std::string& module, const std::vector<std::string>& matrices,
                             int64_t ffn_dim, bool of_expert) {
    const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
      block.push_back(
          {.name = module + name + ".weight", .shape = {rows, columns}, .of_expert = of_expert});
      if (!s.mlp_bias) return;
      // Each rank of tp adds its share of the last one (nn/linear.h).
      block.push_back({.name = module + name + ".bias",
                       .shape = {rows},
                       .division = name == matrices[2] ? Division::per_head : Division::parts,
                       .of_expert = of_expert});
    };
    add(matrices[0], ffn_dim, s.dim);
    add(matrices[1], ffn_dim, s.dim);
    add(matrices[2], s.dim, ffn_dim);
  };
  const auto inside = names.mixture + ".";
  block.push_back({.name = inside + names.router + ".weight",
                   .shape = {s.experts.num, s.dim},
                   .division = Division::per_head,
                   .of_router = true});
  if (s.experts.router_bias) {
    block.push_back({.name = inside + names.router + ".bias",
                     .shape = {s.experts.num},
                     .division = Division::per_head,
                     .of_router = true});
  }
  if (const auto shared = s.experts.shared_ffn_dim; shared > 0) {
    if (!names.shared_gate.empty()) {
      block.push_back({inside + names.shared_gate + ".weight", {1, s.dim}, Division::per_head});
    }
    if (!names.coefficient.empty()) {
      block.push_back({inside + names.coefficient + ".weight", {2, s.dim}, Division::per_head});
      block.push_back({inside + names.coefficient + ".bias", {2}, Division::per_head});
    }
    add_gated(inside + names.shared + ".", {"gate_proj", "up_proj", "down_proj"}, shared,
              /*of_expert=*/false);
  }
  for (int64_t e = 0; e < s.experts.num; ++e) {
    add_gated(fmt::format("{}experts.{}.", inside, e), {names.gate, names.up, names.down},
              s.ffn_dim, /*of_expert=*/true);
  }
}

// A token keeps for each of its rows what enters, the three inside and the result and, as int64, slot and
// place; of the router scores, weights and, as int64, experts.
void add_mixture(const ModelShape& s, const MixtureNames& names, ActivationNumbers& numbers) {
  if (s.experts.num == 0) return;
  const auto f = static_cast<double>(s.ffn_dim), d = static_cast<double>(s.dim),
             k = static_cast<double>(s.experts.top_k), rows = expert_rows(s),
             e = static_cast<double>(s.experts.num);
  const double weights = s.experts.normalise ? 2 * k + 1 : k;  // before and after, and their sum
  const double routing = e + weights + 2 * k + 2 * 2 * rows;
  // The decoder's numbers are of a feed-forward with one row.
  numbers.kept.values += 3 * (rows - 1) * f + 2 * rows * d;
  numbers.kept.floats += routing;
  numbers.selective.values += 2 * (rows - 1) * f + rows * d;
  numbers.recomputed.values += (rows - 1) * f + rows * d;
  numbers.recomputed.floats += routing;
  numbers.deferred += 3 * (rows - 1) * f + 2 * rows * d;
  if (s.experts.shared_ffn_dim == 0) return;
  // The shared expert as a feed-forward; with a gate its result, and how far that is open, as well; with
  // coefficients both results, and these.
  const auto shared = static_cast<double>(s.experts.shared_ffn_dim);
  const double gated = names.shared_gate.empty() ? 0 : 1;
  const double weighed = names.coefficient.empty() ? 0 : 1;
  numbers.kept.values += 3 * shared + gated * (d + 1) + weighed * (2 * d + 2);
  numbers.kept.floats += weighed * 2;
  numbers.selective.values += 2 * shared + d + gated + weighed * 2;
  numbers.recomputed.values += shared + gated + weighed * (d + 2);
  numbers.recomputed.floats += weighed * 2;
  numbers.deferred += 3 * shared + d;
}

}  // namespace tessera::models
