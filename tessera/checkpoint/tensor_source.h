// Named tensors that can be read in parts: what every stored format looks like from here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/dtype.h"

namespace tessera::checkpoint {

struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
  bool operator==(const TensorInfo&) const = default;
};

using TensorInfos = std::map<std::string, TensorInfo, std::less<>>;  ///< by name

/// A stored set of tensors. Cheap to open: values are read when asked for. Safe for several
/// threads.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  const std::filesystem::path& path() const { return path_; }
  const TensorInfos& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return tensors_.contains(name); }
  const TensorInfo& info(std::string_view name) const;  ///< UserError with the nearest name

  /// Elements begin, begin + 1, .. (row-major) of a tensor, in its stored dtype, as many as fill
  /// `destination`. UserError: no such tensor, a damaged file. Assertion: past the tensor's end.
  void read(std::string_view name, int64_t begin, std::span<std::byte> destination) const;

 protected:
  explicit TensorSource(std::filesystem::path path) : path_(std::move(path)) {}
  virtual void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                         std::span<std::byte> destination) const = 0;

  std::filesystem::path path_;
  TensorInfos tensors_;  ///< filled by the constructors of those that derive
};

}  // namespace tessera::checkpoint
