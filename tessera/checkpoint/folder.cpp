#include "tessera/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/strict_json.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStepPrefix = "step_", kPartial = ".partial", kDeleting = ".deleting";

fs::path step_path(const fs::path& directory, int64_t step) {
  return directory / fmt::format("{}{:08}", kStepPrefix, step);
}

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

fs::path with_suffix(fs::path path, std::string_view suffix) { return path += suffix; }

/// Flushes the list of what is in a folder to disk.
void flush_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    errno = error;
    system_error(folder.string() + ": cannot be flushed");
  }
  ::close(fd);
}

void rename_flushed(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    system_error(fmt::format("{}: cannot be renamed to {}", from.string(), to.string()));
  }
  flush_folder(to.parent_path());
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove(path / kMarkerFile, error);  // first: half-removed, it is not complete
  if (!error) fs::remove_all(path, error);
  if (error) {
    throw SystemError(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
  }
}

/// Gives a partial folder the name that it would have got.
void publish(const fs::path& partial) {
  auto name = partial.string();
  name.resize(name.size() - kPartial.size());
  const fs::path final_path(name);
  if (fs::exists(fs::symlink_status(final_path))) {
    const auto old = with_suffix(final_path, kDeleting);
    remove_folder(old);
    rename_flushed(final_path, old);
    rename_flushed(partial, final_path);
    remove_folder(old);
  } else {
    rename_flushed(partial, final_path);
  }
}

}  // namespace

std::string format_marker(const Marker& marker) {
  nlohmann::json json{{"format", "tessera-checkpoint"},
                      {"version", kFormatVersion},
                      {"step", marker.step},
                      {"index_checksum", to_hex(marker.index_checksum)}};
  if (marker.validation_loss) json["validation_loss"] = *marker.validation_loss;
  json["checksum"] = to_hex(checksum(json.dump()));
  return json.dump() + "\n";
}

Marker read_marker(const fs::path& checkpoint) {
  const auto path = checkpoint / kMarkerFile;
  if (!fs::exists(path)) {
    user_error("{}: not complete: expected {} in it, found none", checkpoint.string(), kMarkerFile);
  }
  const auto text = read_file(path);
  const auto json = parse_strict_json(path, text);
  Marker marker;
  std::vector<Checksum> checksum;
  const auto is_step = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned();
  };
  if (!json.is_object() || !is_step("step") || !json.contains("index_checksum") ||
      !json["index_checksum"].is_string() ||
      !from_hex(json["index_checksum"].get_ref<const std::string&>(), checksum) ||
      checksum.size() != 1) {
    user_error("{}: expected an object with step and index_checksum", path.string());
  }
  marker.step = json["step"].get<int64_t>();
  marker.index_checksum = checksum[0];
  if (json.contains("validation_loss") && json["validation_loss"].is_number()) {
    marker.validation_loss = json["validation_loss"].get<double>();
  }
  if (text != format_marker(marker)) {
    user_error("{}: damaged: its text is not the one that was written", path.string());
  }
  return marker;
}

std::vector<StepFolder> step_folders(const fs::path& directory) {
  std::vector<StepFolder> found;
  if (!fs::is_directory(directory)) return found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_directory()) found.push_back({*step, entry.path()});
  }
  std::ranges::sort(found, {}, &StepFolder::step);
  return found;
}

fs::path begin_checkpoint(const fs::path& directory, int64_t step) {
  auto partial = with_suffix(step_path(directory, step), kPartial);
  remove_folder(partial);
  std::error_code error;
  fs::create_directory(partial, error);
  if (error) {
    throw SystemError(fmt::format("{}: cannot be made: {}", partial.string(), error.message()));
  }
  return partial;
}

void discard_checkpoint(const fs::path& partial) { remove_folder(partial); }

void complete(const fs::path& folder, const Index& index, std::optional<double> validation_loss) {
  const auto text = format_index(index);
  write_file(folder / kIndexFile, text);
  flush_folder(folder);
  const Marker marker{
      .step = index.step, .index_checksum = checksum(text), .validation_loss = validation_loss};
  write_file(folder / kMarkerFile, format_marker(marker));
  flush_folder(folder);
}

fs::path finish_checkpoint(const fs::path& partial, const Index& index,
                           std::optional<double> validation_loss) {
  complete(partial, index, validation_loss);
  publish(partial);
  return step_path(partial.parent_path(), index.step);
}

void remove_checkpoint(const fs::path& checkpoint) {
  const auto deleting = with_suffix(checkpoint, kDeleting);
  remove_folder(deleting);
  rename_flushed(checkpoint, deleting);
  remove_folder(deleting);
}

std::vector<fs::path> unfinished(const fs::path& directory) {
  std::vector<fs::path> found;
  if (!fs::is_directory(directory)) return found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const auto suffix = entry.path().extension();
    if (suffix != kPartial && suffix != kDeleting) continue;
    if (step_of(entry.path().stem().string())) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

void clean_up(const fs::path& directory) {
  for (const auto& path : unfinished(directory)) {
    if (path.extension() == kPartial && fs::exists(path / kMarkerFile)) {
      publish(path);
    } else {
      remove_folder(path);
    }
  }
}

std::set<int64_t> superseded(const std::vector<Marker>& checkpoints, const Retention& retention) {
  std::set<int64_t> result;
  if (retention.keep_last == 0) return result;
  std::vector<int64_t> steps;
  std::vector<std::pair<double, int64_t>> by_loss;
  for (const auto& marker : checkpoints) {
    steps.push_back(marker.step);
    if (marker.validation_loss) by_loss.emplace_back(*marker.validation_loss, marker.step);
  }
  std::ranges::sort(steps, std::greater<>());
  std::ranges::sort(by_loss);
  const auto last = std::min<size_t>(steps.size(), static_cast<size_t>(retention.keep_last));
  result.insert(steps.begin() + static_cast<std::ptrdiff_t>(last), steps.end());
  if (retention.keep_every > 0) {
    std::erase_if(result, [&](int64_t step) { return step % retention.keep_every == 0; });
  }
  for (size_t i = 0; i < by_loss.size() && i < static_cast<size_t>(retention.keep_best); ++i) {
    result.erase(by_loss[i].second);
  }
  return result;
}

FolderLock::FolderLock(const fs::path& directory) : FolderLock() {
  std::error_code ignored;
  fs::create_directories(directory, ignored);  // if it fails, so does open
  const auto path = directory / "lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd_ < 0) system_error(path.string() + ": cannot be written");
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) system_error(path.string() + ": cannot be locked");
    auto holder = read_file(path);
    std::ranges::replace(holder, '\n', ' ');
    user_error("{}: another run writes here ({}); wait for its end, or choose another folder",
               directory.string(), holder.empty() ? "unknown" : holder);
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto holder = fmt::format("host {}, process {}", host.data(), ::getpid());
  // A part of it would do: it is read by people alone.
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, holder.data(), holder.size(), 0) < 0) {
    system_error(path.string() + ": cannot be written");
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace tessera::checkpoint
