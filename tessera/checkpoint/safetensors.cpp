#include "tessera/checkpoint/safetensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/checkpoint/safetensors_header.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kHeaderAlignment = 8;

[[noreturn]] void no_such_tensor(const fs::path& path, std::string_view name,
                                 const std::vector<std::string>& names) {
  user_error("{}: holds no tensor '{}'{}", path.string(), name, did_you_mean(name, names));
}

/// A name from the index that must stay in the index's folder. Links are followed: model caches are
/// made of them.
fs::path shard_path(const fs::path& index, const std::string& name) {
  const fs::path relative(name);
  const bool climbs = std::ranges::find(relative, fs::path("..")) != relative.end();
  if (name.empty() || relative.is_absolute() || climbs) {
    user_error("{}: expected shards in its own folder, got {}", index.string(),
               nlohmann::json(name).dump());
  }
  const auto path = index.parent_path() / relative;
  if (!fs::is_regular_file(path))
    user_error("{}: names the shard {}, which is missing", index.string(), name);
  return path;
}

void check_total_size(const fs::path& index, const nlohmann::json& root,
                      const Safetensors& checkpoint) {
  const auto metadata = root.find("metadata");
  if (metadata == root.end() || !metadata->is_object() || !metadata->contains("total_size")) return;
  int64_t total = 0;
  for (const auto& name : checkpoint.names()) total += checkpoint.info(name).num_bytes;
  const auto& stated = metadata->at("total_size");
  // Some writers print it as 123.0.
  if (!stated.is_number() || stated.get<double>() != static_cast<double>(total)) {
    user_error("{}: its total_size is {}, but its tensors take {} bytes", index.string(),
               stated.dump(), total);
  }
}

Safetensors open_index(const fs::path& index) {
  const auto root = parse_strict_json(index, MappedFile(index).text());
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    user_error("{}: expected an object with \"weight_map\"", index.string());
  }
  std::vector<SafetensorsFile> shards;
  std::map<std::string, size_t> shard_by_name;
  std::map<std::string, size_t, std::less<>> weight_map;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    const auto key = nlohmann::json(tensor).dump();
    if (!file.is_string())
      user_error("{}: weight_map: {}: expected the name of a shard", index.string(), key);
    const auto name = file.get<std::string>();
    const auto [entry, is_new] = shard_by_name.try_emplace(name, shards.size());
    if (is_new) shards.emplace_back(shard_path(index, name));
    if (!shards[entry->second].contains(tensor)) {
      user_error("{}: weight_map: {} is not in {}", index.string(), key, name);
    }
    weight_map[tensor] = entry->second;
  }
  if (weight_map.empty()) user_error("{}: its weight_map is empty", index.string());
  Safetensors checkpoint(std::move(shards), std::move(weight_map));
  check_total_size(index, root, checkpoint);
  return checkpoint;
}

std::map<std::string, size_t, std::less<>> map_all(const std::vector<SafetensorsFile>& shards) {
  std::map<std::string, size_t, std::less<>> shard_of;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const auto& name : shards[i].names()) {
      if (!shard_of.emplace(name, i).second)
        user_error("{}: '{}' is in another shard, too", shards[i].path().string(), name);
    }
  }
  return shard_of;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(std::make_shared<MappedFile>(path)) {
  auto header = parse_safetensors_header(path, file_->text());
  metadata_ = std::move(header.metadata);
  for (auto& [name, info] : header.tensors) {
    names_.push_back(name);
    tensors_.emplace(std::move(name), std::move(info));
  }
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) no_such_tensor(path(), name, names_);
  return found->second;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const auto& found = info(name);
  auto* data = const_cast<std::byte*>(file_->bytes().data()) + found.offset;
  const auto options = at::TensorOptions().dtype(found.dtype);
  const auto element_bytes = c10::elementSize(found.dtype);
  if (reinterpret_cast<uintptr_t>(data) % element_bytes != 0) {
    auto copy = at::empty(found.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, static_cast<size_t>(found.num_bytes));
    return copy;
  }
  return at::from_blob(
      data, found.shape, [file = file_](void*) {}, options);
}

void SafetensorsFile::copy_into(std::string_view name, const at::Tensor& destination) const {
  const auto source = tensor(name);
  if (source.sizes() != destination.sizes()) {
    user_error("{}: tensor '{}': expected the shape [{}], got [{}]", path().string(), name,
               fmt::join(destination.sizes(), ", "), fmt::join(source.sizes(), ", "));
  }
  const at::NoGradGuard no_grad;
  destination.copy_(source);
}

Safetensors::Safetensors(std::vector<SafetensorsFile> shards)
    : Safetensors(shards, map_all(shards)) {}

Safetensors::Safetensors(std::vector<SafetensorsFile> shards,
                         std::map<std::string, size_t, std::less<>> weight_map)
    : shards_(std::move(shards)), shard_of_(std::move(weight_map)) {
  for (const auto& [name, shard] : shard_of_) {
    TORCH_INTERNAL_ASSERT(shard < shards_.size());
    names_.push_back(name);
  }
}

const SafetensorsFile& Safetensors::shard(std::string_view name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) no_such_tensor(shards_.front().path().parent_path(), name, names_);
  return shards_[found->second];
}

Safetensors open_checkpoint(const fs::path& path) {
  if (fs::is_directory(path)) {
    const auto single = path / "model.safetensors", index = path / "model.safetensors.index.json";
    if (fs::exists(single)) return open_checkpoint(single);
    if (fs::exists(index)) return open_index(index);
    user_error(
        "{}: expected model.safetensors or model.safetensors.index.json in this folder, got "
        "neither",
        path.string());
  }
  if (path.extension() == ".json") return open_index(path);
  return Safetensors({SafetensorsFile(path)});
}

void save_safetensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const Metadata& metadata) {
  std::vector<std::pair<std::string, at::Tensor>> order(tensors.begin(), tensors.end());
  std::ranges::stable_sort(order, std::greater<>(),
                           [](const auto& item) { return item.second.element_size(); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  int64_t offset = 0;
  for (const auto& [name, tensor] : order) {
    if (name == kMetadataKey)
      user_error("{}: a tensor cannot be named {}", path.string(), kMetadataKey);
    const auto num_bytes = static_cast<int64_t>(tensor.nbytes());
    header[name] = {{"dtype", safetensors_dtype(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  std::string text = header.dump();
  const auto padding =
      (kHeaderAlignment - static_cast<int64_t>(text.size()) % kHeaderAlignment) % kHeaderAlignment;
  text.append(static_cast<size_t>(padding), ' ');

  AtomicFile file(path);
  const uint64_t length = text.size();
  file.write({reinterpret_cast<const char*>(&length), sizeof(length)});
  file.write(text);
  for (const auto& [name, tensor] : order) {
    const auto plain = tensor.detach().cpu().contiguous();
    file.write({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
  }
  file.commit();
}

}  // namespace tessera::checkpoint
