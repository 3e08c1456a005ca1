#include "tessera/checkpoint/pending_folder.h"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

PendingFolder::PendingFolder(fs::path path) : path_(std::move(path)) {
  if (path_.filename().empty()) path_ = path_.parent_path();  // "out/"
  refuse_existing(path_);
  pending_ = path_;
  pending_ += fmt::format(".{}.partial", ::getpid());
  std::error_code error;
  fs::create_directories(pending_, error);
  if (error)
    throw SystemError(fmt::format("{}: cannot be made: {}", path_.string(), error.message()));
}

PendingFolder::~PendingFolder() {
  std::error_code ignored;
  fs::remove_all(pending_, ignored);
}

void PendingFolder::commit() {
  std::error_code error;
  fs::rename(pending_, path_, error);
  if (error) {
    throw SystemError(
        fmt::format("{}: cannot be renamed into place: {}", path_.string(), error.message()));
  }
}

void refuse_existing(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return;
  user_error("{}: exists; remove it or choose another name to write to", path.string());
}

}  // namespace tessera::checkpoint
