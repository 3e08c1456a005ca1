#include "tessera/checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"

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

void rename_flushed(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    system_error(fmt::format("{}: cannot be renamed to {}", from.string(), to.string()));
  }
  flush_folder(to.parent_path());
}

/// A link is removed alone: what it leads to is not ours.
void remove_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    fs::remove(path, error);
  } else {
    fs::remove(path / kMarkerFile, error);  // first: half-removed, it is not complete
    if (!error || error == std::errc::not_a_directory) fs::remove_all(path, error);
  }
  if (error) {
    throw SystemError(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
  }
}

std::string marker_text(const Marker& marker, const nlohmann::json* validation_loss) {
  nlohmann::json json{{"format", "tessera-checkpoint"},
                      {"version", kFormatVersion},
                      {"step", marker.step},
                      {"index_checksum", to_hex(marker.index_checksum)}};
  if (validation_loss != nullptr) json["validation_loss"] = *validation_loss;
  json["checksum"] = to_hex(checksum(json.dump()));
  return json.dump() + "\n";
}

/// The JSON of a marker, which may be anything.
nlohmann::json marker_json(const fs::path& path, const std::string& text) {
  try {
    return parse_strict_json(path, text);
  } catch (const UserError& error) {
    throw DamagedCheckpoint(error.what());
  }
}

/// Gives a partial folder the name that it would have got.
void publish(const fs::path& partial) {
  auto name = partial.string();
  name.resize(name.size() - kPartial.size());
  const fs::path final_path(name);
  if (is_there(final_path)) {
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
  nlohmann::json loss;
  if (marker.validation_loss) loss = *marker.validation_loss;
  const bool finite = marker.validation_loss && std::isfinite(*marker.validation_loss);
  return marker_text(marker, finite ? &loss : nullptr);
}

Marker read_marker(const fs::path& checkpoint) {
  const auto path = checkpoint / kMarkerFile;
  if (!is_there(path)) {
    damaged("{}: not complete: expected {} in it, found none", checkpoint.string(), kMarkerFile);
  }
  const auto text = read_file(path);
  const auto json = marker_json(path, text);
  Marker marker;
  std::vector<Checksum> checksum;
  const auto is_number = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned() &&
           json[key] <= std::numeric_limits<int64_t>::max();
  };
  if (is_number("version") && json["version"] > kFormatVersion) {
    user_error("{}: version: expected {}, got {}; read it with the Tessera that wrote it",
               path.string(), kFormatVersion, json["version"].get<int64_t>());
  }
  if (!json.is_object() || !is_number("step") || !json.contains("index_checksum") ||
      !json["index_checksum"].is_string() ||
      !from_hex(json["index_checksum"].get_ref<const std::string&>(), checksum) ||
      checksum.size() != 1) {
    damaged("{}: expected an object with step and index_checksum", path.string());
  }
  marker.step = json["step"].get<int64_t>();
  marker.index_checksum = checksum[0];
  const auto loss = json.find("validation_loss");
  if (loss != json.end() && loss->is_number()) marker.validation_loss = loss->get<double>();
  // A loss that was no number was once written as null.
  if (text != marker_text(marker, loss == json.end() ? nullptr : &*loss)) {
    damaged("{}: damaged: its text is not the one that was written", path.string());
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

void check_name(const fs::path& checkpoint, int64_t step) {
  const auto absolute = fs::absolute(checkpoint).lexically_normal();
  const auto name =
      absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
  const auto named = step_of(name.string());
  if (!named || *named == step) return;
  user_error("{}: named for step {}, but it is a checkpoint of step {}; rename it to {}",
             checkpoint.string(), *named, step, step_path("", step).string());
}

fs::path begin_checkpoint(const fs::path& directory, int64_t step) {
  auto partial = with_suffix(step_path(directory, step), kPartial);
  remove_folder(partial);
  if (::mkdir(partial.c_str(), 0777) != 0) system_error(partial.string() + ": cannot be made");
  return partial;
}

void discard_checkpoint(const fs::path& partial) { remove_folder(partial); }

std::vector<CompleteCheckpoint> complete_checkpoints(const fs::path& directory) {
  std::vector<CompleteCheckpoint> found;
  for (const auto& [step, path] : step_folders(directory)) {
    try {
      found.push_back({.path = path, .marker = read_marker(path)});
    } catch (const UserError&) {  // not a complete one
    }
  }
  return found;
}

void complete(const fs::path& folder, const Index& index, std::optional<double> validation_loss) {
  const auto text = format_index(index);
  parse_index(folder / kIndexFile, text);
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

fs::path set_aside(const fs::path& checkpoint) {
  for (int number = 1;; ++number) {
    const auto aside =
        with_suffix(checkpoint, number == 1 ? ".damaged" : fmt::format(".damaged.{}", number));
    if (!rename_new(checkpoint, aside)) continue;
    flush_folder(checkpoint.parent_path());
    return aside;
  }
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
    const bool linked = fs::is_symlink(fs::symlink_status(path));
    if (path.extension() == kPartial && !linked && is_there(path / kMarkerFile)) {
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

FolderLock::FolderLock(const fs::path& directory, const char* name) : FolderLock() {
  make_folder(directory);
  const auto path = directory / name;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
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
