// Pipeline parallelism: executes any schedule (schedule/table.h) over the mesh's axis pp.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/mesh/mesh.h"
#include "tessera/parallel/pipeline/messages.h"
#include "tessera/schedule/simulate.h"
#include "tessera/schedule/table.h"

namespace tessera::parallel {

/// One rank's end of a pipeline. Each rank does its actions in the schedule's order, each as soon
/// as what it needs has arrived. An output is freed once it was sent: its backward needs the graph
/// alone. A backward in two parts puts the products for weights off (autograd/deferred_gradients.h).
/// Two actions at the same time are done one after the other: nothing but messages would overlap.
class Pipeline {
 public:
  /// What a stage computes: the input is undefined for the first stage, else what the stage before
  /// returned; the last stage returns the loss of the micro-batch (0-d). Under grad mode inputs
  /// need a gradient. One tensor goes from stage to stage, of any shape.
  using Forward = std::function<torch::Tensor(int stage, int micro_batch, torch::Tensor input)>;

  /// Called before each action, once what it waits for is there.
  using Observe = std::function<void(const schedule::Action&)>;

  /// `schedule` has one rank for each of the mesh's axis pp. UserError if it does not pass
  /// `check` (schedule/check.h). Collective over pp, as is what follows.
  Pipeline(schedule::Schedule schedule, const mesh::DeviceMesh& mesh);

  const schedule::Schedule& schedule() const { return schedule_; }
  bool has_last_stage() const { return rank_ == schedule_.rank_of_stage.back(); }

  /// Forward and backward of every micro-batch. Returns their losses on the rank of the last stage,
  /// elsewhere nothing. Shapes of the first call hold for all. c10::DistError if a rank is lost:
  /// with stage, micro-batch and action.
  std::vector<torch::Tensor> train(const Forward& forward, const Observe& observe = {});

  /// The forward of `num_micro_batches` without gradients: what the last stage returned, on its
  /// rank.
  std::vector<torch::Tensor> evaluate(const Forward& forward, int num_micro_batches);

  /// Is this a whole backward, the last one of its stage, and no weight part follows on this rank?
  /// Then what it adds to is complete, module by module, while it goes on.
  bool completes_gradients(const schedule::Action& action) const;

  /// When this rank's actions of the last call of train() began and ended, in seconds since that
  /// began.
  const std::vector<schedule::Span>& spans() const { return spans_; }

  /// The most micro-batches of this rank's stages between forward and the end of backward, in that
  /// call.
  size_t peak_in_flight() const { return peak_in_flight_; }

 private:
  /// What is between a forward and the end of its backward.
  struct InFlight {
    torch::Tensor input;
    torch::autograd::Edge output;
    torch::TensorOptions output_options;
    autograd::DeferredGradientsPtr deferred;  ///< where the backward is split
  };
  using Key = std::pair<int, int>;  ///< stage, micro-batch

  torch::Tensor needed_by(const schedule::Action& action);
  torch::Tensor run_forward(const schedule::Action& action, torch::Tensor input,
                            const Forward& forward);
  void run_backward(const schedule::Action& action, torch::Tensor gradient);
  void train_one(const schedule::Action& action, const Forward& forward, const Observe& observe);

  schedule::Schedule schedule_;
  int rank_ = 0;
  Messages messages_;
  Messages::Plan plan_;
  std::map<int, schedule::Action> last_;  // by stage: its last backward, after all weight parts
  std::set<Key> split_;                   // whose backward has two parts
  std::map<Key, InFlight> in_flight_;
  std::vector<torch::Tensor> losses_;
  std::vector<schedule::Span> spans_;
  size_t peak_in_flight_ = 0;
};

}  // namespace tessera::parallel
