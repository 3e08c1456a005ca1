// The safetensors format: weights on disk as one JSON header and raw bytes, alone or in shards with
// an index.
//
//   uint64 N (little endian) | N bytes of JSON | tensors, one after the other
//   {"__metadata__": {"k": "v"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin,
//   end]}, ..}
//
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file.h"

namespace tessera::checkpoint {

struct TensorInfo {
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< of its first byte in the file
  int64_t num_bytes = 0;
};

using Metadata = std::map<std::string, std::string>;

/// One file, mapped. Cheap to copy; every copy and every tensor keeps the mapping alive.
class SafetensorsFile {
 public:
  /// Maps the file and checks it against every rule of the format: header length (at most 100 MB,
  /// inside the file), header that begins with '{' and is valid UTF-8 JSON without repeated keys,
  /// text-to-text metadata, known dtypes, shapes without overflow, offsets that agree with dtype
  /// and shape, and that tile the rest of the file exactly (no overlap, no hole, nothing missing,
  /// nothing left over). UserError, one line, at the first broken rule. dtypes: F64 F32 F16 BF16
  /// I64 I32 I16 I8 U64 U32 U16 U8 BOOL F8_E4M3 F8_E5M2. Cost: reads the header alone.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  const std::vector<std::string>& names() const { return names_; }  ///< in the order of their bytes
  const Metadata& metadata() const { return metadata_; }
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

  /// UserError with the nearest name if there is none such; likewise below.
  const TensorInfo& info(std::string_view name) const;

  /// A view of the mapped bytes: READ-ONLY, writing into it is a segmentation fault; clone() it to
  /// change it. A copy instead where a file of another writer does not align the bytes to the
  /// dtype.
  at::Tensor tensor(std::string_view name) const;

  /// Copies (and converts to the destination's dtype and device); UserError if the shapes differ.
  void copy_into(std::string_view name, const at::Tensor& destination) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  std::vector<std::string> names_;
  Metadata metadata_;
};

/// A checkpoint of one file or of several shards: a name leads to the file that holds it.
class Safetensors {
 public:
  explicit Safetensors(std::vector<SafetensorsFile> shards);  ///< all their tensors
  /// The tensors of `weight_map` (name to shard); what else the shards hold is left out, as in
  /// transformers.
  Safetensors(std::vector<SafetensorsFile> shards,
              std::map<std::string, size_t, std::less<>> weight_map);

  const std::vector<std::string>& names() const { return names_; }  ///< sorted
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  bool contains(std::string_view name) const { return shard_of_.find(name) != shard_of_.end(); }
  const TensorInfo& info(std::string_view name) const { return shard(name).info(name); }
  at::Tensor tensor(std::string_view name) const {
    return shard(name).tensor(name);
  }  ///< see SafetensorsFile
  void copy_into(std::string_view name, const at::Tensor& destination) const {
    shard(name).copy_into(name, destination);
  }

 private:
  const SafetensorsFile& shard(std::string_view name) const;

  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
  std::vector<std::string> names_;
};

/// Opens a .safetensors file, a .index.json, or a folder with model.safetensors or
/// model.safetensors.index.json. UserError: nothing there, a broken file (above), an index that is
/// not {"weight_map": {name: file}}, that leads outside its folder, names a missing shard or
/// tensor, or whose metadata.total_size is not the bytes of its tensors.
Safetensors open_checkpoint(const std::filesystem::path& path);

/// Writes one file that appears only when complete. Tensors lie by element size (large first), then
/// name, so that each is aligned; the header is padded with spaces to a multiple of 8. Tensors of
/// any device and layout are copied. UserError: a dtype that the format lacks, the name
/// "__metadata__". SystemError: disk full, folder not writable.
void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const Metadata& metadata = {});

}  // namespace tessera::checkpoint
