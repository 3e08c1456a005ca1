#include "tessera/checkpoint/pending_folder.h"

#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

PendingFolder::PendingFolder(fs::path path) : path_(std::move(path)) {
  if (path_.filename().empty()) path_ = path_.parent_path();  // "out/"
  refuse_existing(path_);
  if (path_.has_parent_path()) make_folder(path_.parent_path());
  pending_ = make_temporary_folder(path_);
}

PendingFolder::~PendingFolder() {
  std::error_code ignored;
  fs::remove_all(pending_, ignored);
}

void PendingFolder::commit() {
  if (!rename_new(pending_, path_)) refuse_existing(path_);  // somebody was faster
  flush_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

void refuse_existing(const fs::path& path) {
  if (!is_there(path)) return;
  user_error("{}: exists; remove it or choose another name to write to", path.string());
}

}  // namespace tessera::checkpoint
