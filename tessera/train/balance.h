// What the routers of a mixture did in a step, over all ranks, and what training asks of them: experts evenly
// used, room for so many tokens, noise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/language_model.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/nn/router.h"
#include "tessera/report/sink.h"

namespace tessera::train {

struct LayerRouter {
  int64_t layer = 0;
  std::string path;  ///< "model.layers.0.mlp.gate"
  std::shared_ptr<nn::RouterImpl> router;

  /// What a checkpoint, and DeepSeek-V3's files, call the router's selection bias.
  std::string bias_name() const { return path + std::string(models::kSelectionBias); }
};

/// In the order of layers. To be called before pipeline parallelism divides the model.
std::vector<LayerRouter> routers_of(const models::LanguageModel& model);

/// The same with the biases that the weights which the model begins with have, if they are stored.
std::vector<LayerRouter> routers_of(const models::LanguageModel& model,
                                    const std::optional<checkpoint::Pretrained>& stored,
                                    torch::Device device);

/// Gives routers the selection biases that `stored` has, float32 on `device`. UserError where one of a
/// family that has them (nn::RouterOptions) lacks.
void take_selection_biases(const std::vector<LayerRouter>& routers,
                           const checkpoint::Pretrained& stored, torch::Device device);

/// What a step's routers did, over all ranks and micro-batches.
struct BalanceResult {
  std::vector<report::ExpertLoad> layers;
  std::vector<report::Figure> figures;  ///< under "moe/"
};

/// The amounts that a step's sums are divided by.
struct BalanceAmounts {
  double positions = 0, rows = 0;  ///< of the global batch
  double loss_scale = 1;
};

/// Watches every router of a run. What is counted is that of the global batch, so nothing here depends
/// on ranks, micro-batches or checkpointing, whose second forward is not counted.
///
/// The auxiliary and the z-loss are attached to the routers' weights (autograd/attached_loss.h), each
/// divided by the global batch. Where a loss is made of counts, a step must know all of them before its
/// first backward: with one micro-batch they are summed between forward and backward, else a forward
/// without gradients comes first.
class Balance {
 public:
  /// `routers`: of the whole model, some of which this rank may not have. `world`: all ranks; those of
  /// `tensor_axis` see the same tokens. Gives routers their nn::RouterTraining and a bias, of zeros unless they
  /// have one, where moe.selection_bias_rate is above 0 or their family's files have it; others get theirs by add_biases().
  Balance(std::vector<LayerRouter> routers, const models::LanguageModel& model,
          const config::MoeSection& section, mesh::Axis world, mesh::Axis tensor_axis,
          torch::Device device);
  Balance(const Balance&) = delete;
  Balance& operator=(const Balance&) = delete;
  ~Balance();  ///< routers forget it

  /// Is a loss made of counts of the global batch?
  bool needs_counts() const;

  void begin_step(const BalanceAmounts& amounts);
  /// The counts of the step are complete: sums them and sets what its backward gives. Collective;
  /// nothing the second time in a step, or where no loss needs them.
  void know_counts();
  /// After a forward that served to know them: the step's own are counted next.
  void count_anew();
  /// Sums what was seen over all ranks and moves the biases, unless the step is skipped. Collective.
  BalanceResult finish_step(bool skipped);

  const std::vector<LayerRouter>& all() const { return all_; }  ///< of the whole model
  std::vector<LayerRouter> here() const;                        ///< of this rank's stages
  /// Gives each router that has none a selection bias of zeros: a checkpoint's comes into it.
  void add_biases();
  bool has_biases() const { return has_biases_; }

 private:
  torch::Tensor see(size_t index, const nn::RouterCall& call, const torch::Tensor& weights);
  torch::Tensor summed() const;
  double aux_loss(const torch::Tensor& sums) const;

  std::vector<LayerRouter> all_;
  std::vector<bool> is_here_;
  config::MoeSection section_;
  mesh::Axis world_, tensor_axis_;
  int64_t num_experts_, top_k_;
  bool has_biases_ = false;
  bool in_step_ = false, knows_counts_ = false;
  BalanceAmounts amounts_;
  torch::Tensor seen_;                 // float64 [routers, ..], of this rank (balance.cpp, Columns)
  torch::Tensor slopes_;               // float32 [routers, E], of the sums of probabilities
  torch::Tensor row_slope_, z_slope_;  // float32 [], of sums over rows and over positions
};

/// Null for a model without routers.
std::unique_ptr<Balance> make_balance(std::vector<LayerRouter> routers,
                                      const models::LanguageModel& model,
                                      const config::MoeSection& section,
                                      const mesh::DeviceMesh& mesh);

}  // namespace tessera::train
