// A table of users' own modules and loops, each trained sharded and as plain LibTorch trains it on
// the whole batch in one process: losses, parameters and buffers are equal.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/hooked.h"
#include "tessera/parallel/data/data_parallel.h"

namespace tessera::own_modules {

/// Base of the table's modules: children and parameters are registered where they are declared.
struct Own : nn::Hookable {
  template <typename Holder>
  Holder child(const std::string& name, Holder holder) {
    register_module(name, holder);
    return holder;
  }
  torch::Tensor parameter(const std::string& name, at::IntArrayRef sizes,
                          torch::Dtype dtype = torch::kFloat32) {
    return register_parameter(name, torch::empty(sizes, dtype));
  }
};

/// The part [begin, end) of a step's batch of `total` rows. Batches are functions of step and tag,
/// so that every process draws the same whole batch and takes its rows.
struct Rows {
  int step = 0;
  int64_t begin = 0, end = 0, total = 0;

  int64_t size() const { return end - begin; }
  torch::Tensor randn(std::vector<int64_t> sizes, int tag = 0) const;  ///< [rows, sizes ..]
  /// [rows, sizes ..] int64 from 0 to limit - 1
  torch::Tensor ids(int64_t limit, std::vector<int64_t> sizes, int tag = 0) const;
  /// Sum over all elements, divided by the rows of the whole batch.
  torch::Tensor loss(const torch::Tensor& terms) const;
  /// What a term that no row has counts for here: over all parts the sum is 1.
  double share() const { return static_cast<double>(size()) / static_cast<double>(total); }

 private:
  torch::Tensor part(const torch::Tensor& whole) const { return whole.slice(0, begin, end); }
};

using Net = std::shared_ptr<nn::Hookable>;
using OptimizerMaker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// How a case is run beside plain LibTorch.
struct Setting {
  std::string name;  ///< of ranks, placement, rule of units, variant: for messages
  int num_ranks = 1;
  bool hybrid = false;
  parallel::DataParallelOptions options;
  parallel::UnitRule rule;
  bool overrides = false;  ///< the first and the last unit have another placement
  bool sync_each = true;   ///< every micro-batch's gradient is reduced
  bool half = false;       ///< parameters are bf16
  std::function<void(nn::Hookable& block)> recompute = nullptr;
};

/// One run of a case on this process: plain LibTorch, or sharded. What only a sharded model has to
/// do, a plain one leaves out.
class Run {
 public:
  Run(std::vector<Net> nets, const Setting* setting, const mesh::DeviceMesh* mesh);

  Rows rows;  ///< this process's, of the step
  int micro_batches = 1;

  template <typename Impl>
  nn::Hooked<Impl> net(size_t index = 0) const {
    return nn::Hooked<Impl>(std::dynamic_pointer_cast<Impl>(nets_.at(index)));
  }

  /// `each` for every micro-batch of this process's rows; each ends with a backward().
  void for_micro_batches(const std::function<void(const Rows&)>& each);

  void note(const torch::Tensor& value);  ///< a sum over rows, which is compared; as a loss is
  void backward(const torch::Tensor& loss, size_t index = 0);  ///< notes it, backward, finish
  void finish_backward(size_t index = 0);
  void update(size_t index = 0);  ///< the optimizer's step, and gradients are forgotten
  void forget(size_t index = 0);  ///< gradients are, without a step
  void set_is_last_backward(bool last, size_t index = 0);
  void set_requires_gradient_sync(bool required, size_t index = 0);
  void unshard(size_t index = 0);
  void reshard(size_t index = 0);
  bool sharded() const { return !models_.empty(); }
  bool full_shard() const;

  // What the harness uses.
  void make_optimizers(const OptimizerMaker& make);
  torch::optim::Optimizer& optimizer(size_t index = 0) { return *optimizers_.at(index); }
  parallel::DataParallel& model(size_t index = 0) { return models_.at(index); }
  const std::vector<Net>& nets() const { return nets_; }
  const std::vector<double>& notes() const { return notes_; }

 private:
  std::vector<Net> nets_;
  const Setting* setting_;
  std::vector<parallel::DataParallel> models_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<double> notes_;
  size_t next_note_ = 0;
};

inline bool on_hybrid(const Setting& setting) { return setting.hybrid; }
inline bool in_full_shard(const Setting& setting) {
  return setting.num_ranks > 1 && setting.options.unit.placement == parallel::Placement::full_shard;
}

/// Where a case is left out, and why.
struct LeftOut {
  std::string why;  ///< "known wrong: ..", or what the documentation says
  std::function<bool(const Setting&)> where = [](const Setting&) { return true; };
};

/// What cases may differ in.
struct Traits {
  OptimizerMaker optimizer = nullptr;  ///< none: SGD with momentum
  int64_t rows = 6;                    ///< of a step's batch, and one more in every second step
  int steps = 3;
  int micro_batches = 1;
  bool half = true;       ///< bf16 parameters make sense
  bool recompute = true;  ///< modules whose names begin with "block" may be checkpointed
  double tolerance = 1e-5;
  bool initialise = true;  ///< random values for all parameters; otherwise the net has its own
  std::vector<LeftOut> left_out = {};
};

struct Case {
  std::string name;
  Traits traits;
  std::function<std::vector<Net>()> make;
  std::function<void(Run&)> step;
};

/// A case whose step is one forward of each micro-batch: `loss(net, rows)`.
template <typename Impl, typename Loss>
Case net_case(std::string name, Traits traits, Loss loss) {
  return {std::move(name), std::move(traits),
          [] { return std::vector<Net>{std::make_shared<Impl>()}; },
          [loss](Run& run) {
            auto net = run.net<Impl>();
            run.for_micro_batches([&](const Rows& rows) { run.backward(loss(net, rows)); });
            run.update();
          }};
}

/// A case with a loop of its own: step(run) is a whole step.
template <typename Impl, typename... Others, typename Step>
Case loop_case(std::string name, Traits traits, Step step) {
  return {std::move(name), std::move(traits),
          [] {
            return std::vector<Net>{std::make_shared<Impl>(), std::make_shared<Others>()...};
          },
          step};
}

std::vector<Case> sharing_cases();    ///< modules and parameters used again, frozen, or not at all
std::vector<Case> loop_cases();       ///< what stands around forward and backward
std::vector<Case> parameter_cases();  ///< shapes and dtypes, and views of parameters
std::vector<Case> layer_cases();      ///< layers as users write them
std::vector<Case> flow_cases();       ///< operations of autograd, losses, arguments
std::vector<Case> structure_cases();  ///< how modules are put together
std::vector<Case> result_cases();     ///< what modules take and give

/// Every case, or those whose names contain the environment variable TESSERA_OWN_MODULE.
std::vector<Case> all_cases();

/// Runs every case in all settings of the mesh.
void run_cases(const mesh::DeviceMesh& mesh);

}  // namespace tessera::own_modules
