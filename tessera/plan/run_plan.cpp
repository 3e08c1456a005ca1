#include "tessera/plan/run_plan.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::plan {

RunPlan make_plan(const config::RunConfig& config, const models::ModelShape& shape,
                  const mesh::MeshShape& mesh, const PlanOptions& options) {
  if (const auto problem = config::in_backward_problem(config, mesh)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  RunPlan plan{.shape = shape,
               .mesh = mesh,
               .pipeline = pipeline_plan(config, shape, mesh, options.measured)};
  auto parts = rank_parts(config, shape, mesh, plan.pipeline);
  plan.fp8 = fp8_layers(config, shape.num_layers, parts.front());
  for (auto& part : parts) {
    auto units = plan_units(config, shape, part, options.device_is_host);
    plan.ranks.push_back({.part = std::move(part), .units = std::move(units)});
  }
  return plan;
}

RunPlan make_plan(const config::RunConfig& config, const models::ModelShape& shape,
                  const PlanOptions& options) {
  return make_plan(config, shape, config::fitting_mesh(config.parallel, config.parallel.num_ranks),
                   options);
}

}  // namespace tessera::plan
