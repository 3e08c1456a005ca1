// What a run that resumes finds in a folder of checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::faults {

struct Found {
  std::optional<int64_t> newest;     ///< step of the newest checkpoint that is whole
  std::vector<std::string> refused;  ///< of newer ones: why not
};

/// Reads all of the newest checkpoint, else of the one before it, and so on.
Found newest_whole(const std::filesystem::path& folder);

/// Every checkpoint that counts as complete is whole and holds what its step should: adds gtest
/// failures. Returns their steps.
std::vector<int64_t> check_all(const std::filesystem::path& folder);

/// Nothing but checkpoints (of `steps`) and the lock is there, and in those no file that their
/// index does not name.
void check_no_leftovers(const std::filesystem::path& folder, const std::vector<int64_t>& steps);

}  // namespace tessera::faults
