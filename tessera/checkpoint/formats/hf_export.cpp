#include "tessera/checkpoint/formats/hf_export.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/hub/file_names.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using Tensors = std::vector<std::pair<std::string, TensorInfo>>;  ///< as exported

Tensors exported_tensors(const TensorSource& source, const HfExportOptions& options) {
  Tensors tensors;
  const auto add = [&](const std::string& name) {
    auto info = source.info(name);
    if (options.dtype && is_float(info.dtype)) info.dtype = *options.dtype;
    tensors.emplace_back(name, std::move(info));
  };
  if (options.names.empty()) {
    for (const auto& [name, info] : source.tensors()) add(name);
  } else {
    for (const auto& name : options.names) add(name);
  }
  return tensors;
}

/// Fills one file after the other.
std::vector<Tensors> shards_of(const Tensors& tensors, int64_t max_bytes) {
  std::vector<Tensors> shards(1);
  int64_t used = 0;
  for (const auto& tensor : tensors) {
    const int64_t num_bytes = tensor.second.num_bytes();
    if (used + num_bytes > max_bytes && !shards.back().empty()) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(tensor);
    used += num_bytes;
  }
  return shards;
}

void write_shard(const TensorSource& source, const Tensors& tensors, const fs::path& path) {
  write_safetensors(source, tensors, path, {{"format", "pt"}});
}

void write_weights(const TensorSource& source, const std::vector<Tensors>& shards,
                   const fs::path& folder) {
  if (shards.size() == 1) return write_shard(source, shards.front(), folder / "model.safetensors");
  int64_t total_size = 0;
  auto weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(source, shards[i], folder / file);
    for (const auto& [name, info] : shards[i]) {
      weight_map[name] = file;
      total_size += info.num_bytes();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}},
                                {"weight_map", std::move(weight_map)}};
  write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

/// config_name of the dtype that most of the floats have; "" if there are none.
std::string config_dtype(const Tensors& tensors) {
  std::map<DType, int64_t> elements;
  for (const auto& [name, info] : tensors) {
    if (is_float(info.dtype)) elements[info.dtype] += info.num_elements();
  }
  const auto most = std::ranges::max_element(elements, {}, [](const auto& e) { return e.second; });
  return most == elements.end() ? "" : config_name(most->first);
}

void write_config(nlohmann::json config, const std::string& dtype, const fs::path& folder) {
  // transformers 5 says "dtype", 4 said "torch_dtype" and knows no other.
  const auto* key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  if (!dtype.empty()) config[key] = dtype;
  if (config.contains("torch_dtype")) config.erase("dtype");
  write_file(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace

std::string config_name(DType dtype) {
  static const std::map<DType, std::string> names = {{DType::f64, "float64"},
                                                     {DType::f32, "float32"},
                                                     {DType::f16, "float16"},
                                                     {DType::bf16, "bfloat16"}};
  return names.at(dtype);
}

void export_hf(const TensorSource& source, const fs::path& destination,
               const HfExportOptions& options) {
  if (options.dtype && !is_float(*options.dtype)) {
    user_error("{}: expected a dtype of F64, F32, F16 or BF16 to export to, got {}",
               destination.string(), dtype_name(*options.dtype));
  }
  const auto tensors = exported_tensors(source, options);
  PendingFolder folder(destination);
  write_weights(source, shards_of(tensors, options.max_shard_bytes), folder.path());
  write_config(options.config, config_dtype(tensors), folder.path());
  for (const auto name : hub::kTextFiles) {
    if (options.carry_from.empty() || !fs::exists(options.carry_from / name)) continue;
    write_file(folder.path() / name, MappedFile(options.carry_from / name).text());
  }
  if (!options.chat_template.empty())
    write_file(folder.path() / hub::kChatTemplateFile, options.chat_template);
  if (!options.model_card.empty()) write_file(folder.path() / "README.md", options.model_card);
  folder.commit();
}

}  // namespace tessera::checkpoint
