// The safetensors format: weights on disk as one JSON header and raw bytes, alone or in shards with
// an index.
//
//   uint64 N (little endian) | N bytes of JSON | tensors, one after the other
//   {"__metadata__": {"k": "v"},
//    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..}
//
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// One file, mapped. Copies share the mapping.
class SafetensorsFile : public TensorSource {
 public:
  /// Maps the file and checks it against every rule of the format: header length (at most 100 MB,
  /// inside the file), header that begins with '{' and is valid UTF-8 JSON without repeated keys,
  /// text-to-text metadata, known dtypes, shapes without overflow, offsets that agree with dtype
  /// and shape, and that tile the rest of the file exactly (no overlap, no hole, nothing missing,
  /// nothing left over). UserError, one line, at the first broken rule. Cost: reads the header
  /// alone.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<std::string>& names() const { return names_; }  ///< in the order of their bytes
  const Metadata& metadata() const { return metadata_; }
  int64_t offset(std::string_view name) const;  ///< of the tensor's first byte in the file

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, int64_t, std::less<>> offsets_;
  std::vector<std::string> names_;
  Metadata metadata_;
};

/// A checkpoint of one file or of several shards: a name leads to the file that holds it.
class Safetensors : public TensorSource {
 public:
  /// Opens a .safetensors file, a .index.json, or a folder with model.safetensors or
  /// model.safetensors.index.json; of shards, the tensors that the index names, as in transformers.
  /// UserError: nothing there, a broken file (above), an index that is not {"weight_map": {name:
  /// file}}, that leads outside its folder, names a missing shard or tensor, or whose
  /// metadata.total_size is not the bytes of its tensors.
  explicit Safetensors(const std::filesystem::path& path);

  const std::vector<SafetensorsFile>& shards() const { return shards_; }

 private:
  void open_index(const std::filesystem::path& index);
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
};

/// Is there what Safetensors(path) would open?
bool is_safetensors(const std::filesystem::path& path);

}  // namespace tessera::checkpoint
