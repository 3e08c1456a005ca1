#include "tessera/hub/push.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/shown_urls.h"
#include "tessera/base/units.h"
#include "tessera/hub/in_threads.h"
#include "tessera/hub/push_files.h"
#include "tessera/hub/push_large_file.h"
#include "tessera/hub/repository.h"
#include "tessera/hub/retries.h"

namespace tessera::hub {
namespace {

class Push {
 public:
  explicit Push(const PushOptions& options)
      : options_(options),
        repository_(options.settings, options.name),
        threads_(options.settings.num_connections) {}

  Pushed run() {
    find_files();
    make_repository();
    tell_left_out();
    find_changes();
    Pushed pushed{.num_files = std::ssize(changes_),
                  .num_unchanged = std::ssize(files_) - std::ssize(changes_),
                  .url = {}};
    if (changes_.empty()) return pushed;
    send_large_files();
    pushed.url = commit();
    return pushed;
  }

 private:
  /// A file that the repository lacks.
  struct Change {
    size_t file = 0;  ///< into files_
    bool is_large = false;
    LargeObject object;
    std::optional<LargeTransfer> transfer;
  };

  void find_files() {
    auto found = files_to_push(options_.folder);
    files_ = std::move(found.files);
    left_out_ = std::move(found.left_out);
    for (const auto& file : files_) contents_.emplace_back(file.path);
  }

  void tell_left_out() const {
    if (left_out_.empty()) return;
    constexpr size_t kMostNamed = 5;
    const std::vector<std::string> named(
        left_out_.begin(),
        left_out_.begin() + std::min<std::ptrdiff_t>(kMostNamed, std::ssize(left_out_)));
    const auto others = left_out_.size() - named.size();
    notice(fmt::format("left out (hidden, half written, a lock or a link elsewhere): {}{}",
                       fmt::join(named, ", "),
                       others == 0 ? "" : fmt::format(" and {} more", others)));
  }

  void make_repository() {
    const auto& name = options_.name;
    if (with_retries(options_.settings, [&] { return repository_.ensure(options_.is_private); }))
      notice(fmt::format("made the {}{} {}", options_.is_private ? "private " : "", name.noun(),
                         name.repository));
  }

  void find_changes() {
    std::vector<Upload> uploads;
    for (size_t i = 0; i < files_.size(); ++i) {
      const auto text = contents_[i].text();
      uploads.push_back({.name = files_[i].name,
                         .size = std::ssize(text),
                         .sample = std::string(text.substr(0, kSampleBytes))});
    }
    const auto answers = with_retries(options_.settings, [&] { return repository_.ask(uploads); });
    for (size_t i = 0; i < files_.size(); ++i) {
      if (answers[i].is_ignored) {
        notice(fmt::format("left out, as the repository's .gitignore says: {}", files_[i].name));
        continue;
      }
      const auto text = contents_[i].text();
      // The Hub's store takes no empty objects.
      Change change{.file = i,
                    .is_large = answers[i].is_large && !text.empty(),
                    .object = {},
                    .transfer = {}};
      const auto own = change.is_large ? sha256(text) : git_blob_name(text);
      if (own == answers[i].there) continue;
      if (change.is_large) change.object = {.sha256 = own, .size = std::ssize(text)};
      changes_.push_back(std::move(change));
    }
  }

  /// Asks which large files the Hub lacks, and sends these.
  void send_large_files() {
    std::vector<LargeObject> objects;
    std::vector<size_t> of_change;
    for (size_t i = 0; i < changes_.size(); ++i) {
      if (!changes_[i].is_large) continue;
      objects.push_back(changes_[i].object);
      of_change.push_back(i);
    }
    auto transfers =
        with_retries(options_.settings, [&] { return repository_.transfers_of(objects); });
    std::vector<size_t> missing;
    for (size_t i = 0; i < objects.size(); ++i) {
      if (!transfers[i]) continue;
      changes_[of_change[i]].transfer = std::move(transfers[i]);
      missing.push_back(of_change[i]);
      progress_.total_bytes += objects[i].size;
    }
    notice(fmt::format("{} of {} files are new or changed; {} of large files to send",
                       changes_.size(), files_.size(), format_bytes(progress_.total_bytes)));
    threads_.for_each(
        missing.size(),
        [&] { return std::make_unique<Repository>(options_.settings, options_.name); },
        [&](Repository& repository, size_t i) { send(repository, changes_[missing[i]]); });
  }

  void send(Repository& repository, const Change& change) {
    int64_t before = 0;
    const auto on_sent = [&](int64_t sent) {
      threads_.stop_if_failed();
      if (!options_.on_progress) return;
      const std::scoped_lock lock(mutex_);
      progress_.done_bytes += sent - std::exchange(before, sent);
      options_.on_progress(progress_);
    };
    push_large_file(repository, change.object, contents_[change.file].text(), change.transfer,
                    options_.settings, on_sent);
    on_sent(change.object.size);
  }

  std::string commit() {
    std::vector<CommitFile> files;
    for (const auto& change : changes_) {
      files.push_back({.name = files_[change.file].name,
                       .is_large = change.is_large,
                       .object = change.object,
                       .content = change.is_large ? "" : contents_[change.file].text()});
    }
    auto page = fmt::format("{}/{}", shown_urls(options_.settings.endpoint), options_.name.page());
    for (Retries retries(options_.settings);;) {
      try {
        const auto url = repository_.commit(options_.message, files);
        return url.empty() ? page : url;
      } catch (const Unreachable&) {
        retries.after_failure();
      }
      // The answer may be lost, but not the commit.
      changes_.clear();
      find_changes();
      if (changes_.empty()) return page;
    }
  }

  void notice(const std::string& line) const {
    if (options_.on_notice) options_.on_notice(line);
  }

  const PushOptions& options_;
  Repository repository_;
  Threads threads_;
  std::vector<PushFile> files_;
  std::vector<std::string> left_out_;
  std::vector<MappedFile> contents_;  ///< of files_
  std::vector<Change> changes_;
  std::mutex mutex_;
  Progress progress_;
};

}  // namespace

Pushed push(const PushOptions& options) {
  if (options.settings.offline) {
    user_error("{}: cannot be pushed to while HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set",
               options.name.repository);
  }
  if (options.settings.token.empty()) {
    user_error("{}: a push needs a token with write access, from {}/settings/tokens; set HF_TOKEN",
               options.name.repository, shown_urls(options.settings.endpoint));
  }
  try {
    return Push(options).run();
  } catch (const Unreachable& error) {
    user_error("{}: the Hub cannot be reached ({}); run it again to go on where it was",
               options.name.repository, error.what());
  }
}

}  // namespace tessera::hub
