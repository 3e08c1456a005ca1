// The folder that holds a run's checkpoints: their names, how one comes to be complete, which are
// removed.
//
//   checkpoints/lock                     held by the run that writes here
//   checkpoints/step_00000100/           complete.json, index.json, shard_00000.safetensors, ..
//   checkpoints/step_00000200.partial/   being written, or left by a run that was killed
//   checkpoints/step_00000050.deleting/  being removed, likewise
//
// A checkpoint is complete when complete.json stands in it: it is renamed into place after every
// other file was flushed, and names the checksum of index.json, which names those of the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/damage.h"
#include "tessera/checkpoint/index.h"

namespace tessera::checkpoint {

inline constexpr const char* kIndexFile = "index.json";
inline constexpr const char* kMarkerFile = "complete.json";

/// What complete.json says.
struct Marker {
  int64_t step = 0;
  Checksum index_checksum = 0;            ///< of the whole index.json
  std::optional<double> validation_loss;  ///< finite

  bool operator==(const Marker&) const = default;
};

/// {"checksum": of the same text without this key, "format": "tessera-checkpoint",
///  "index_checksum": "<16 hex digits>", "step": .., "validation_loss": .., "version": 1}
/// A loss that is no number is left out.
std::string format_marker(const Marker& marker);

/// DamagedCheckpoint: missing ("not complete"), or not to the byte what format_marker writes.
/// UserError: of another version. SystemError: the disk.
Marker read_marker(const std::filesystem::path& checkpoint);

struct StepFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

/// Folders named step_N, and links to folders, by step, complete or not; none if `directory` does
/// not exist.
std::vector<StepFolder> step_folders(const std::filesystem::path& directory);

/// UserError if the folder's name says another step than its checkpoint is of.
void check_name(const std::filesystem::path& checkpoint, int64_t step);

/// An empty folder for a checkpoint to be written: step_N.partial. What a killed run left of it is
/// removed. SystemError: read-only, no space.
std::filesystem::path begin_checkpoint(const std::filesystem::path& directory, int64_t step);

/// Removes what begin_checkpoint made, after a save that failed. SystemError: the disk.
void discard_checkpoint(const std::filesystem::path& partial);

/// Writes index and marker into a folder in which all of index.files stand flushed: it is complete
/// then. What cannot be read back is not written: UserError.
void complete(const std::filesystem::path& folder, const Index& index,
              std::optional<double> validation_loss);

/// The last steps of a save, once all of index.files stand flushed in `partial`: index, marker,
/// and the final name step_N, each flushed before the next. A step_N that stood there is replaced.
/// Returns its path.
std::filesystem::path finish_checkpoint(const std::filesystem::path& partial, const Index& index,
                                        std::optional<double> validation_loss);

struct CompleteCheckpoint {
  std::filesystem::path path;
  Marker marker;
};

/// Those in a folder whose marker can be read.
std::vector<CompleteCheckpoint> complete_checkpoints(const std::filesystem::path& directory);

/// Removes it in two steps, so that a half-removed one is never taken for a checkpoint. Of a link
/// the link alone.
void remove_checkpoint(const std::filesystem::path& checkpoint);

/// Gives a damaged checkpoint the name ".damaged", or ".damaged.2" and so on: whatever was set
/// aside before stays. Returns the name.
std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// Folders step_N.partial and step_N.deleting: of a run that is under way or was killed.
std::vector<std::filesystem::path> unfinished(const std::filesystem::path& directory);

/// After a run was killed: removes what was half-written or half-removed, and gives a checkpoint
/// that was complete but for its name its name. Call it while holding the lock.
void clean_up(const std::filesystem::path& directory);

/// Which complete checkpoints stay; the newest always does.
struct Retention {
  int64_t keep_last = 0;   ///< 0: all
  int64_t keep_every = 0;  ///< those of steps that it divides; 0: none
  int64_t keep_best = 0;   ///< that many with the lowest validation loss

  bool operator==(const Retention&) const = default;
};

/// The steps to remove.
std::set<int64_t> superseded(const std::vector<Marker>& checkpoints, const Retention& retention);

/// The right to write into a folder; whoever is killed loses it. Move-only.
class FolderLock {
 public:
  /// Makes the folder, and in it the file `name`. UserError names host and process of the run that
  /// holds it; SystemError if it cannot be written.
  explicit FolderLock(const std::filesystem::path& directory, const char* name = "lock");
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  FolderLock() = default;  // so that the destructor runs when the other constructor throws

  int fd_ = -1;
};

}  // namespace tessera::checkpoint
