#include "tessera/checkpoint/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// A name from the index that must stay in the index's folder. Links are followed: model caches are
/// made of them.
fs::path shard_path(const fs::path& index, const std::string& name) {
  const fs::path relative(name);
  const bool climbs = std::ranges::find(relative, fs::path("..")) != relative.end();
  if (name.empty() || relative.is_absolute() || climbs) {
    user_error("{}: expected shards in its own folder, got {}", index.string(),
               nlohmann::json(name).dump());
  }
  auto path = index.parent_path() / relative;
  if (!fs::is_regular_file(path))
    user_error("{}: names the shard {}, which is missing", index.string(), name);
  return path;
}

void check_total_size(const fs::path& index, const nlohmann::json& root,
                      const TensorInfos& tensors) {
  const auto metadata = root.find("metadata");
  if (metadata == root.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
  int64_t total = 0;
  for (const auto& [name, info] : tensors) total += info.num_bytes();
  const auto& stated = metadata->at("total_size");
  // Some writers print it as 123.0.
  if (!stated.is_number() || stated.get<double>() != static_cast<double>(total)) {
    user_error("{}: its total_size is {}, but its tensors take {} bytes", index.string(),
               stated.dump(), total);
  }
}

/// What was read of a mapped file is not read again, and would count as this process's memory: its
/// pages go. A part of a page at either end stays.
void forget(std::span<const std::byte> mapped) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* begin = const_cast<std::byte*>(mapped.data());
  size_t left = mapped.size();
  if (std::align(page, page, begin, left) == nullptr) return;
  ::madvise(begin, left / page * page, MADV_DONTNEED);  // only a wish
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : TensorSource(path), file_(std::make_shared<MappedFile>(path)) {
  auto header = parse_safetensors_header(path, file_->text());
  metadata_ = std::move(header.metadata);
  for (auto& [name, stored] : header.tensors) {
    names_.push_back(name);
    offsets_.emplace(name, stored.offset);
    tensors_.emplace(name, std::move(stored.info));
  }
}

int64_t SafetensorsFile::offset(std::string_view name) const {
  info(name);  // refuses what is not there
  return offsets_.find(name)->second;
}

void SafetensorsFile::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                                std::span<std::byte> destination) const {
  const int64_t first = offsets_.at(name) + begin * dtype_bytes(info.dtype);
  const auto part = file_->bytes().subspan(static_cast<size_t>(first), destination.size());
  std::memcpy(destination.data(), part.data(), part.size());
  forget(part);
}

Safetensors::Safetensors(const fs::path& path) : TensorSource(path) {
  if (fs::is_directory(path)) {
    const auto single = path / kSingleFile, index = path / kIndexFile;
    if (fs::exists(single)) {
      shards_.emplace_back(single);
    } else if (fs::exists(index)) {
      open_index(index);
    } else {
      user_error("{}: expected {} or {} in this folder, got neither", path.string(), kSingleFile,
                 kIndexFile);
    }
  } else if (path.extension() == ".json") {
    open_index(path);
  } else {
    shards_.emplace_back(path);
  }
  if (!shard_of_.empty()) return;
  tensors_ = shards_.front().tensors();
  for (const auto& [name, info] : tensors_) shard_of_[name] = 0;
}

void Safetensors::open_index(const fs::path& index) {
  const auto root = parse_strict_json(index, MappedFile(index).text());
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    user_error("{}: expected an object with \"weight_map\"", index.string());
  }
  std::map<std::string, size_t> shard_by_name;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    const auto key = nlohmann::json(tensor).dump();
    if (!file.is_string())
      user_error("{}: weight_map: {}: expected the name of a shard", index.string(), key);
    const auto name = file.get<std::string>();
    const auto [entry, is_new] = shard_by_name.try_emplace(name, shards_.size());
    if (is_new) shards_.emplace_back(shard_path(index, name));
    const auto& shard = shards_[entry->second];
    if (!shard.contains(tensor)) {
      user_error("{}: weight_map: {} is not in {}", index.string(), key, name);
    }
    shard_of_[tensor] = entry->second;
    tensors_[tensor] = shard.info(tensor);
  }
  if (tensors_.empty()) user_error("{}: its weight_map is empty", index.string());
  check_total_size(index, root, tensors_);
}

void Safetensors::read_part(const std::string& name, const TensorInfo&, int64_t begin,
                            std::span<std::byte> destination) const {
  shards_[shard_of_.at(name)].read(name, begin, destination);
}

bool is_safetensors(const fs::path& path) {
  return path.extension() == ".safetensors" || path.filename() == kIndexFile ||
         fs::exists(path / kSingleFile) || fs::exists(path / kIndexFile);
}

}  // namespace tessera::checkpoint
