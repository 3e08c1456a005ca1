// One rank's part of save_bench: a state of a given size, saved or loaded, timed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::bench {

struct RankJob {
  std::string action;          ///< save, load
  std::string folder;          ///< of checkpoints (save), or the checkpoint (load)
  int64_t num_bytes = 0;       ///< of the state, all ranks together
  bool async = false;          ///< save
  std::string verify = "off";  ///< save: off, sizes, full
};

/// Holds the state cut evenly over the ranks that `tessera launch` started, and does the job once.
/// Seconds are rank 0's, between barriers. Save: {"seconds", "stall_seconds", "copy_seconds"}: the
/// last is a plain copy of the same slices into memory of the same kind. Load: {"seconds"}.
nlohmann::json run_rank(const RankJob& job);

}  // namespace tessera::bench
