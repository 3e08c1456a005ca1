// How fast a folder's drive is, by size of a read or write and how many are under way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/offload/space.h"

namespace tessera::offload {

struct TuneOptions {
  std::filesystem::path folder;
  int64_t bytes = int64_t{1} << 30;  ///< written and read for each pair
  std::vector<int64_t> block_bytes = {int64_t{256} << 10, int64_t{1} << 20, int64_t{8} << 20};
  std::vector<int> queue_depths = {1, 8, 32, 128};
  bool any_file_system = false;
};

struct TuneRow {
  int64_t block_bytes = 0;
  int queue_depth = 0;
  double read_gb = 0, write_gb = 0;  ///< GB/s
};

struct TuneResult {
  std::vector<TuneRow> rows;
  size_t best = 0;  ///< of rows: reads and writes of as many bytes take the least time
  std::string way;  ///< "io_uring, direct"
  std::vector<std::string> notes;
};

/// GB/s.
struct Speed {
  double read = 0, write = 0;
  double both = 0;          ///< each way, while as much is read as written
  int64_t moved_bytes = 0;  ///< in all, by the measurement
};

/// The speed of folders used as a run uses them: writes and reads twice `bytes`, several times where that takes no
/// time, through at most `memory_bytes`. Throws as Space does.
Speed measure(const SpaceOptions& options, int64_t bytes, int64_t memory_bytes);

/// Reads and writes as a run does, with checksums. Throws as Space does.
TuneResult tune(const TuneOptions& options);

}  // namespace tessera::offload
