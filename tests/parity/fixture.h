// The recorded runs of PyTorch and transformers under tests/fixtures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/config/run_config.h"
#include "tessera/train/assemble.h"
#include "tessera/train/step.h"
#include "tests/support/ranks.h"

namespace tessera::parity {

inline nlohmann::json read_fixture(const std::string& name) {
  return nlohmann::json::parse(read_file("tests/fixtures/" + name));
}

struct Recorded {
  std::vector<double> losses, grad_norms;
};

/// The job of the recorded runs: rows in order, AdamW with decay on every parameter, constant
/// learning rate.
inline config::RunConfig recorded_job(int64_t seq_len, int64_t global_batch) {
  config::RunConfig job;
  job.data.train = {"tests/fixtures/tokens_head.bin"};
  job.data.validation_fraction = 0;
  job.data.seq_len = seq_len;
  job.data.shuffle = false;
  job.optimizer.decay_norms_and_biases = true;
  job.schedule.type = optim::LearningRateSchedule::constant;
  job.train.global_batch = global_batch;
  return job;
}

/// The job on a mesh of `shape`.
inline config::RunConfig over(config::RunConfig job, const mesh::MeshShape& shape,
                              parallel::Placement placement) {
  job.parallel.placement = placement;
  job.parallel.num_ranks = shape.num_ranks();
  job.parallel.dp_replicate = shape.dp_replicate, job.parallel.dp_shard = shape.dp_shard;
  job.parallel.tp = shape.tp, job.parallel.pp = shape.pp, job.parallel.ep = shape.ep;
  if (shape.etp > 0) job.parallel.etp = shape.etp;
  return job;
}

/// The same, with everything divided where dp_shard can divide.
inline config::RunConfig over(config::RunConfig job, const mesh::MeshShape& shape) {
  return over(
      std::move(job), shape,
      shape.dp_shard > 1 ? parallel::Placement::full_shard : parallel::Placement::replicate);
}

/// Trains on `axis`'s ranks and compares every step: losses within 2e-5 relative, gradient norms
/// within 2e-4 (the recorded norms are themselves off by up to 1e-4: fp32 sums, see
/// kernels/flat.h).
inline void expect_recorded(train::Run& run, const Recorded& recorded) {
  for (size_t step = 0; step < recorded.losses.size(); ++step) {
    const auto result = train::train_step(run, static_cast<int64_t>(step));
    EXPECT_NEAR(result.loss / recorded.losses[step], 1, 2e-5) << "step " << step + 1;
    EXPECT_NEAR(result.grad_norm / recorded.grad_norms[step], 1, 2e-4) << "step " << step + 1;
  }
}

}  // namespace tessera::parity
