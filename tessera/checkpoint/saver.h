// Saves checkpoints while training goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/checkpoint/block_file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/held_extents.h"
#include "tessera/mesh/mesh.h"

namespace tessera::checkpoint {

struct SaverOptions {
  std::filesystem::path directory;  ///< on a file system that all ranks share
  /// Training goes on once a save has copied its slices to memory that is kept for that: a second
  /// time the bytes saved. false: it waits until they are on disk; memory: two parts of 8 MiB. So it
  /// does where values are not in memory.
  bool async = true;
  Verify verify = Verify::full;
  Retention retention;
  nlohmann::json layout, model;  ///< see Index
  std::string config;
  std::vector<std::filesystem::path> assets;  ///< small files carried along (tokenizer, ..)
};

/// What is saved beside the tensors.
struct Snapshot {
  int64_t step = 0;
  nlohmann::json state;  ///< rank 0's counts
  std::optional<double> validation_loss;
};

/// How a save went.
struct SaveReport {
  int64_t step = 0;
  std::string error;             ///< one line; empty: the checkpoint is complete
  std::vector<int64_t> removed;  ///< steps whose checkpoints the new one supersedes (rank 0)
  std::string removal_error;     ///< why one of them is still there (rank 0)
  int64_t num_bytes = 0;         ///< written by this rank
  double wait_seconds = 0;       ///< training stood still for the save before
  double stall_seconds = 0;      ///< for this one
  double total_seconds = 0;      ///< until it was complete
};

/// Every rank writes what own_share leaves it of `held` into a file of its own; rank 0 index,
/// marker and name (folder.h). At most one save is under way. A save that fails leaves no
/// checkpoint, harms no older one, and is reported; training may go on.
class Saver {
 public:
  /// Collective. `axis`: a group that nobody else uses meanwhile (a channel). Rank 0 locks the
  /// folder and cleans it up; UserError if another run writes there.
  Saver(const mesh::Axis& axis, const std::vector<HeldExtent>& held, SaverOptions options);
  ~Saver();  ///< waits for the save under way

  /// Collective. Returns when the parts' values may change again.
  void save(Snapshot snapshot);

  /// Waits for the save under way. DistError if a rank was lost.
  void finish();

  /// The reports of saves that ended since the last call, in order.
  std::vector<SaveReport> take_reports();

 private:
  SaveReport write(const Snapshot& snapshot);
  void write_all(const Snapshot& snapshot, SaveReport& report);
  IndexedFile write_shard(const std::filesystem::path& partial);
  void remove_superseded(SaveReport& report) const;
  Index index_of(const Snapshot& snapshot, std::vector<IndexedFile> files) const;
  void fill(int64_t offset, std::span<std::byte> destination) const;

  mesh::Axis axis_;
  SaverOptions options_;
  std::optional<FolderLock> lock_;  // rank 0
  std::vector<HeldExtent> own_;
  ShardLayout layout_;
  std::map<std::string, IndexedTensor, std::less<>> tensors_;  // rank 0: of all ranks
  PageBuffer image_;                                           // of the file, if async
  std::future<void> populating_;
  std::future<SaveReport> under_way_;
  std::vector<SaveReport> reports_;
};

}  // namespace tessera::checkpoint
