#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "tessera/base/axes.h"
#include "tessera/base/expert_capacity.h"
#include "tessera/base/fitting.h"
#include "tessera/config/fields.h"
#include "tessera/config/place.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"
#include "tessera/models/spec.h"

namespace tessera::config {
namespace {

/// Why no expert is ever chosen by more tokens than it takes; "": it can be.
std::string capacity_problem(const RunConfig& config, const models::ExpertsShape& experts,
                             double factor) {
  const int64_t seq_len = config.data.seq_len, least = config.moe.min_capacity;
  const auto most = nn::expert_capacity(seq_len, experts.num, experts.top_k, factor, least);
  if (most < seq_len) return {};
  if (least >= seq_len) {
    return fmt::format(
        "has no effect here: moe.min_capacity {} is room for all {} tokens of a row; set that "
        "below {}, or remove both",
        least, seq_len, seq_len);
  }
  // Room for all tokens but one, or less.
  const int64_t thousandths = (seq_len - 1) * experts.num * 1000 / (seq_len * experts.top_k);
  const double most_useful = static_cast<double>(thousandths) / 1000;
  return fmt::format(
      "has no effect here: {} of a token's {} choices among {} experts is room for all {} tokens "
      "of a row; {}remove it",
      factor, experts.top_k, experts.num, seq_len,
      seq_len > 1 ? fmt::format("set it to at most {:.3f}, or ", most_useful) : "");
}

/// transformers jitters what experts see as well, so its key is not taken for ours without a word.
std::optional<KeyProblem> jitter_problem(const RunConfig& config,
                                         const models::ExpertsShape& experts) {
  if (experts.jitter_noise == 0 || config.moe.input_jitter > 0) return {};
  return KeyProblem{
      "moe.input_jitter",
      fmt::format("expected a number above 0, as the model's config.json has router_jitter_noise "
                  "{0}; set {0} (of what enters routers; transformers multiplies what enters "
                  "experts, too), or router_jitter_noise to 0 in config.json",
                  experts.jitter_noise)};
}

/// Biases and groups choose by scores, what is drawn by logits.
std::optional<KeyProblem> sampling_problem(const RunConfig& config,
                                           const models::ExpertsShape& experts) {
  using enum nn::ExpertSampling;
  if (config.moe.sampling == none) return {};
  const int64_t drawn = config.moe.sampling == but_first ? experts.top_k - 1 : experts.top_k;
  if (drawn == 0 || experts.top_k == experts.num) {
    return KeyProblem{
        "moe.sampling",
        fmt::format("has no effect here: a token takes {} of {} experts, {}; set none",
                    experts.top_k, experts.num,
                    drawn == 0 ? "of which the best is not drawn" : "which is all")};
  }
  if (!experts.selection_bias && config.moe.selection_bias_rate == 0) return {};
  const char* bias = experts.selection_bias ? "the model has" : "moe.selection_bias_rate moves";
  return KeyProblem{
      "moe.sampling",
      fmt::format("expected none beside the selection biases that {}; set none", bias)};
}

}  // namespace

std::optional<KeyProblem> experts_problem(const models::ModelShape& shape,
                                          const mesh::MeshShape& mesh) {
  const int64_t experts = shape.experts.num;
  if (mesh.ep > 1 && experts == 0) {
    return KeyProblem{"parallel.ep",
                      fmt::format("expected 1 for a model without experts, got {}", mesh.ep)};
  }
  if (mesh.ep > 1 && experts % mesh.ep != 0) {
    const auto fitting = fitting_numbers(experts, [&](int64_t ranks) {
      auto other = mesh;
      other.ep = static_cast<int>(ranks);
      return experts % ranks == 0 && !mesh::ep_problem(other);
    });
    return KeyProblem{"parallel.ep",
                      fmt::format("{} experts cannot be shared out over {} ranks; set one of {}",
                                  experts, mesh.ep, fmt::join(fitting, ", "))};
  }
  if (mesh.etp == 0 || shape.experts.num > 0) return std::nullopt;
  return KeyProblem{"parallel.etp",
                    fmt::format("expected null for a model without experts, got {}", mesh.etp)};
}

std::optional<KeyProblem> moe_problem(const RunConfig& config, const models::ModelShape& shape) {
  const auto& experts = shape.experts;
  if (experts.num > 0) {
    if (auto problem = jitter_problem(config, experts)) return problem;
    if (auto problem = sampling_problem(config, experts)) return problem;
    for (const auto& [key, factor] :
         {std::pair{"moe.capacity_factor", config.moe.capacity_factor},
          std::pair{"moe.eval_capacity_factor", config.moe.eval_capacity_factor}}) {
      if (!factor) continue;
      const auto problem = capacity_problem(config, experts, *factor);
      if (!problem.empty()) return KeyProblem{key, problem};
    }
    return {};
  }
  for (const auto& section : sections()) {
    if (section.name != "moe") continue;
    for (const auto& field : section.fields) {
      if (is_default(field, config)) continue;
      return KeyProblem{
          field.key,
          "has no effect here: the model has no experts; remove it, or set model.path "
          "to a mixture such as Mixtral"};
    }
  }
  return {};
}

void check_moe(const RunConfig& config, const Place& place) {
  if (config.moe.drop_policy == nn::DropPolicy::random && !config.moe.capacity_factor) {
    place.error("moe.drop_policy",
                "random: draws in training alone, where nothing is dropped; set "
                "moe.capacity_factor, or moe.drop_policy to position");
  }
  if (!config.model.path.empty()) return;  // the ranks see to it
  const auto problem = moe_problem(config, models::model_preset(config.model.preset));
  if (problem) place.error(problem->key, "{}", problem->message);
}

}  // namespace tessera::config
