#include "tessera/hub/snapshot.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/download.h"
#include "tessera/hub/in_threads.h"
#include "tessera/hub/remote.h"
#include "tessera/hub/retries.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

class Snapshot {
 public:
  Snapshot(const RepositoryName& name, const Settings& settings, const OnProgress& on_progress)
      : name_(name),
        settings_(settings),
        on_progress_(on_progress),
        cache_(settings.cache, name),
        threads_(settings.num_connections) {}

  fs::path download(const ChooseFiles& choose) {
    find_missing_files(choose);
    for_each_file([this](Remote& remote, RemoteFile& file) {
      file = with_retries(settings_, [&] { return remote.describe(commit_, file.name); });
    });
    check_space();
    for_each_file([this](Remote& remote, RemoteFile& file) {
      const int64_t size = std::max(int64_t{0}, file.size);
      int64_t before = size - missing_bytes(cache_, file);
      download_blob(remote, cache_, commit_, file, settings_, [&](int64_t have) {
        add_progress(have - before);
        before = have;
      });
      add_progress(size - before);  // what another process brought
      cache_.link(commit_, file.name, file.etag);
    });
    cache_.set_commit(name_.revision, commit_);
    return cache_.snapshot(commit_);
  }

 private:
  void find_missing_files(const ChooseFiles& choose) {
    Remote remote(settings_, name_);
    const auto all = with_retries(settings_, [&] { return remote.list(); });
    commit_ = all.commit;
    for (const auto& file : choose(all.names)) {
      if (!fs::exists(cache_.snapshot(commit_) / file)) files_.push_back({.name = file});
    }
  }

  void check_space() {
    for (const auto& file : files_) progress_.total_bytes += missing_bytes(cache_, file);
    make_folder(settings_.cache);
    std::error_code error;
    const auto space = fs::space(settings_.cache, error);
    if (!error && static_cast<int64_t>(space.available) < progress_.total_bytes) {
      user_error("{}: {} to download, but {} free in {}: make room or set HF_HUB_CACHE",
                 name_.text(), format_bytes(progress_.total_bytes),
                 format_bytes(static_cast<int64_t>(space.available)), settings_.cache.string());
    }
  }

  template <typename Action>
  void for_each_file(const Action& action) {
    threads_.for_each(
        files_.size(), [&] { return std::make_unique<Remote>(settings_, name_); },
        [&](Remote& remote, size_t i) { action(remote, files_[i]); });
  }

  void add_progress(int64_t bytes) {
    threads_.stop_if_failed();
    if (!on_progress_) return;
    const std::scoped_lock lock(mutex_);
    progress_.done_bytes += bytes;
    on_progress_(progress_);
  }

  const RepositoryName& name_;
  const Settings& settings_;
  const OnProgress& on_progress_;
  Cache cache_;
  std::string commit_;
  std::vector<RemoteFile> files_;  ///< that the cache lacks
  Threads threads_;
  std::mutex mutex_;
  Progress progress_;
};

}  // namespace

fs::path download_snapshot(const RepositoryName& name, const Settings& settings,
                           const ChooseFiles& choose, const OnProgress& on_progress) {
  return Snapshot(name, settings, on_progress).download(choose);
}

}  // namespace tessera::hub
