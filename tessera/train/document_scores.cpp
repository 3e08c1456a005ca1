#include "tessera/train/document_scores.h"

#include "tessera/train/forward_backward.h"
#include "tessera/train/preference.h"
#include "tessera/train/step.h"

namespace tessera::train {

std::vector<double> document_scores(
    Run& run, const data::Loader& loader,
    const std::function<void(int64_t done, int64_t total)>& on_batch) {
  const auto all = loader.in_order();
  std::vector<double> scores(static_cast<size_t>(all.data().num_documents()));
  const bool counts = run.tensor_axis.rank() == 0;  // others of it have the same
  const BatchLoss take = [&](const data::Batch& batch) {
    return kernels::TokenLoss([&](const torch::Tensor& losses) {
      const auto found = log_probabilities(batch, losses);
      for (size_t i = 0; counts && i < found.size(); ++i) {
        scores[static_cast<size_t>(batch.contents[i].index)] = found[i];
      }
      return kernels::Objective();
    });
  };
  const int64_t num_batches = all.num_batches();
  for (int64_t step = 0; step < num_batches; ++step) {
    loss_sum(run, micro_batches(run, all, step), take);
    if (on_batch) on_batch(step + 1, num_batches);
  }
  auto sums = torch::from_blob(scores.data(), {std::ssize(scores)}, torch::kFloat64);
  run.world.all_reduce(sums, comm::ReduceOp::sum).wait();
  return scores;
}

}  // namespace tessera::train
