// GGUF files (version 3): metadata and tensors in one file, as llama.cpp reads them.
//
//   "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensors' names, sizes, types, offsets | data
//
// Little endian. Sizes are stored with the fastest first; shapes here have it last, as elsewhere.
// Format: https://github.com/ggml-org/ggml (docs/gguf.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/gguf/blocks.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

enum class GgufType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

/// A value of the metadata: numbers of each kind in the widest of it; an array has elements of one type,
/// which are no arrays.
struct GgufValue {
  GgufType type = GgufType::u32;
  std::variant<uint64_t, int64_t, double, std::string, std::vector<GgufValue>> held;
  GgufType element = GgufType::u32;  ///< of an array

  bool operator==(const GgufValue&) const = default;
};

GgufValue gguf_u32(uint64_t value);
GgufValue gguf_f32(double value);
GgufValue gguf_bool(bool value);
GgufValue gguf_string(std::string value);
GgufValue gguf_strings(const std::vector<std::string>& values);
GgufValue gguf_i32s(const std::vector<int64_t>& values);
GgufValue gguf_f32s(const std::vector<double>& values);

using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// One file, mapped. Values in blocks are read as f32.
class GgufSource : public TensorSource {
 public:
  /// UserError, one line, at the first thing that is wrong: another version, counts, lengths and
  /// offsets that the file's size belies, a key or tensor twice, a type that is not read here.
  explicit GgufSource(const std::filesystem::path& path);

  const GgufMetadata& metadata() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;
  GgmlType type(std::string_view name) const;  ///< as which a tensor is stored

 private:
  struct Stored {
    GgmlType type = GgmlType::f32;
    uint64_t offset = 0;  ///< of its first byte in the file
  };
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Stored, std::less<>> stored_;
  GgufMetadata metadata_;
};

bool is_gguf(const std::filesystem::path& path);  ///< does a file begin as one does?

struct GgufTensor {
  std::string name;  ///< of the file and of the source
  GgmlType type = GgmlType::f32;
};

/// Writes `metadata` and tensors of `source`, floats, as `path`, which appears when complete. Memory: a
/// few MB. UserError: rows that are no whole blocks; SystemError: disk full.
void write_gguf(const TensorSource& source, const GgufMetadata& metadata,
                const std::vector<GgufTensor>& tensors, const std::filesystem::path& path);

}  // namespace tessera::checkpoint
