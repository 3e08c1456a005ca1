#include "tessera/parallel/expert/share.h"

#include "tessera/nn/experts.h"
#include "tessera/parallel/expert/dispatch.h"

namespace tessera::parallel {

std::set<std::string> share_experts(torch::nn::Module& model, const mesh::DeviceMesh& mesh,
                                    int64_t overlap_degree) {
  const auto& axis = mesh.axis("ep");
  std::set<std::string> names;
  if (!mesh.shape().experts_apart()) return names;
  const int etp = mesh.shape().expert_tp(), tp = mesh.shape().tp;
  const TokenPart part{.index = mesh.axis("tp").rank() / etp, .parts = tp / etp};
  for (const auto& item : model.named_modules()) {
    auto* experts = item.value()->as<nn::ExpertsImpl>();
    if (experts == nullptr) continue;
    const int64_t all = experts->num_experts(), ranks = axis.size(), here = all / ranks;
    TORCH_CHECK_VALUE(all % ranks == 0, item.key(), ": expected a multiple of the ", ranks,
                      " ranks of ep, got ", all, " experts");
    experts->keep(axis.rank() * here, (axis.rank() + 1) * here);
    experts->dispatch = [axis, part, overlap_degree](
                            const torch::Tensor& x, const nn::Routing& routing, int64_t num_experts,
                            const nn::ExpertProducts& products,
                            const std::function<void()>& meanwhile) {
      return of_part(x, routing, part, [&](const torch::Tensor& own, const nn::Routing& of_own) {
        return over_ranks(own, of_own, num_experts, products, axis,
                          {.degree = overlap_degree, .meanwhile = meanwhile});
      });
    };
    for (const auto& parameter : experts->named_parameters()) {
      names.insert(item.key() + "." + parameter.key());
    }
  }
  return names;
}

}  // namespace tessera::parallel
