// The experts of a mixture: feed-forwards of which each token takes a few. They take what the routing
// sends them: no row is padded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "tessera/kernels/activation.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/router.h"

namespace tessera::nn {

/// What an expert's three matrices are called in the register, as its family's files have them.
struct ExpertNames {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

/// What becomes of gate and up: [R, F] each -> [R, F].
using GatedUnit = std::function<torch::Tensor(const torch::Tensor& gate, const torch::Tensor& up)>;

struct ExpertsOptions {
  int64_t num_experts = 8;
  int64_t dim = 0;      ///< D
  int64_t ffn_dim = 0;  ///< F, of each expert
  ExpertNames names;
  bool with_bias = false;  ///< of each matrix
  GatedUnit gated = kernels::swiglu;
};

/// Computes the experts that are here: rows [R, D] in the order of these experts, counts int64
/// [experts here] of the rows of each, on the rows' device -> [R, D]. Differentiable; R may be 0, and
/// every expert's matrices take part in any case.
using ExpertProducts =
    std::function<torch::Tensor(const torch::Tensor& rows, const torch::Tensor& counts)>;

/// Brings rows to experts and results back: x [N, D] and its routing -> [N, D], the weighted sums of
/// each token's results. Calls `meanwhile` once: what is best computed while rows are on their way.
using ExpertDispatch = std::function<torch::Tensor(
    const torch::Tensor& x, const Routing& routing, int64_t num_experts,
    const ExpertProducts& products, const std::function<void()>& meanwhile)>;

/// All experts are on this rank: rows are sorted by expert (kernels/expert_rows.h).
torch::Tensor dispatch_here(const torch::Tensor& x, const Routing& routing, int64_t num_experts,
                            const ExpertProducts& products, const std::function<void()>& meanwhile);

/// down(gated(gate(x), up(x))) of each expert, summed by the routing's weights. Holds nothing but
/// experts "0", "1", .., modules of three Linear each, whose matrices are parameters of their own:
/// what reads, writes, divides, adapts or optimises a Linear's weight finds them under the names of
/// published files. Dense ones are multiplied group by group (kernels/grouped_linear.h), others by
/// calling each.
///
/// Who shares out experts over ranks (parallel/expert/share.h) calls `keep` and puts another dispatch in the place of
/// dispatch_here, as another core is put into nn::Attention.
class ExpertsImpl : public Hookable {
 public:
  explicit ExpertsImpl(const ExpertsOptions& options, const torch::TensorOptions& tensors = {});

  torch::Tensor forward(const torch::Tensor& x, const Routing& routing);  ///< [.., D] -> [.., D]
  /// The same, and what `beside` makes of x: a shared expert, computed while rows are on their way.
  std::pair<torch::Tensor, torch::Tensor> forward(
      const torch::Tensor& x, const Routing& routing,
      const std::function<torch::Tensor(const torch::Tensor& x)>& beside);
  bool calls_what_it_contains() const override { return false; }
  /// A router's weights are float32, and the rows beside them come from modules that cast theirs.
  bool inputs_are_cast() const override { return false; }

  /// Keeps experts [begin, end) alone, with their names; the others leave the register. Before
  /// anything else is attached to the model.
  void keep(int64_t begin, int64_t end);

  int64_t num_experts() const { return options_.num_experts; }  ///< of all ranks
  int64_t num_here() const { return std::ssize(here_); }

  ExpertDispatch dispatch = dispatch_here;

 private:
  struct Expert {
    Linear gate, up, down;
  };
  torch::Tensor products(const torch::Tensor& rows, const torch::Tensor& counts);

  ExpertsOptions options_;
  std::map<int64_t, Expert> here_;  // by its number
};
using Experts = Hooked<ExpertsImpl>;

}  // namespace tessera::nn
