// The smallest job that trains: what tests change.
#pragma once

#include "tessera/config/run_config.h"

namespace tessera {

/// The preset `tiny` on the repository's own tokens, 8 rows of 64 a step.
inline config::RunConfig tiny_job() {
  config::RunConfig job;
  job.model.preset = "tiny";
  job.data.train = {"tests/fixtures/tokens_head.bin"};
  job.data.validation_fraction = 0;
  job.data.seq_len = 64;
  job.train.global_batch = 8;
  return job;
}

}  // namespace tessera
