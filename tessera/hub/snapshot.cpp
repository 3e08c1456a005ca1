#include "tessera/hub/snapshot.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/download.h"
#include "tessera/hub/model_files.h"
#include "tessera/hub/remote.h"
#include "tessera/hub/retries.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

class Snapshot {
 public:
  Snapshot(const ModelName& name, const Settings& settings, const OnProgress& on_progress)
      : name_(name), settings_(settings), on_progress_(on_progress), cache_(settings.cache, name) {}

  fs::path download(bool weights) {
    find_missing_files(weights);
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
  struct Stopped {};  ///< thrown in the threads that did not fail

  void find_missing_files(bool weights) {
    Remote remote(settings_, name_);
    const auto all = with_retries(settings_, [&] { return remote.list(); });
    const auto wanted = wanted_files(all.names, weights);
    const auto is_weights = [](const std::string& file) { return file.ends_with(".safetensors"); };
    if (weights && std::ranges::none_of(wanted, is_weights)) {
      user_error("{}: expected weights as .safetensors among its {} files, got none", name_.text(),
                 all.names.size());
    }
    commit_ = all.commit;
    for (const auto& file : wanted) {
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

  /// Runs `action` for every file in several threads, each with a connection of its own; throws the
  /// first error of any.
  template <typename Action>
  void for_each_file(const Action& action) {
    std::atomic<size_t> next{0};
    std::exception_ptr error;
    const auto work = [&] {
      try {
        Remote remote(settings_, name_);
        for (size_t i = next++; i < files_.size() && !has_failed_; i = next++) {
          action(remote, files_[i]);
        }
      } catch (const Stopped&) {
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        if (!has_failed_.exchange(true)) error = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> threads;
      const auto count = std::min(files_.size(), static_cast<size_t>(settings_.num_connections));
      for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
    }
    if (error) std::rethrow_exception(error);
  }

  void add_progress(int64_t bytes) {
    if (has_failed_) throw Stopped();
    if (!on_progress_) return;
    const std::scoped_lock lock(mutex_);
    progress_.done_bytes += bytes;
    on_progress_(progress_);
  }

  const ModelName& name_;
  const Settings& settings_;
  const OnProgress& on_progress_;
  Cache cache_;
  std::string commit_;
  std::vector<RemoteFile> files_;  ///< that the cache lacks
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  Progress progress_;
};

}  // namespace

fs::path download_snapshot(const ModelName& name, const Settings& settings, bool weights,
                           const OnProgress& on_progress) {
  return Snapshot(name, settings, on_progress).download(weights);
}

}  // namespace tessera::hub
