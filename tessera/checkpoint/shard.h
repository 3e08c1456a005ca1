// One file of a checkpoint: extents of tensors as a safetensors file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/extent.h"
#include "tessera/checkpoint/index.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Elements of a tensor, and of which.
struct TensorExtent : Extent {
  std::string name;
  TensorInfo info;  ///< of the whole tensor

  int64_t num_bytes() const { return length * dtype_bytes(info.dtype); }
};

/// Sorts as files hold them: by the size of their elements, large first, so that all are aligned,
/// and else as they are.
template <typename Extents, typename DTypeOf>
void in_file_order(Extents& extents, DTypeOf dtype_of) {
  std::ranges::stable_sort(extents, std::greater<>(),
                           [&](const auto& extent) { return dtype_bytes(dtype_of(extent)); });
}

/// Where extents lie in a file. In it a whole tensor has its own name and shape, so that any reader
/// of safetensors finds it; a part is "NAME[begin:end]" of shape [length], or, of a stripe,
/// "NAME[begin:end of offset+run/stride]", where begin and end count the stripe's elements.
class ShardLayout {
 public:
  /// Lays them out in the order of in_file_order(). One that lies in the tensor without a gap loses
  /// its stripe.
  explicit ShardLayout(std::vector<TensorExtent> extents);

  const std::vector<TensorExtent>& extents() const { return extents_; }
  int64_t offset(size_t i) const { return offsets_[i]; }  ///< of extents()[i] in the file
  int64_t num_bytes() const { return num_bytes_; }        ///< of the file

  /// copy(i, begin, destination): bytes begin .. of extents()[i].
  using Copy = std::function<void(size_t i, int64_t begin, std::span<std::byte> destination)>;

  /// Bytes offset .. of the file: header, and what `copy` gives.
  void fill(int64_t offset, std::span<std::byte> destination, const Copy& copy) const;

  /// Adds them to the index's tensors as ranges of its file number `file`.
  void add_to(Index& index, size_t file) const;

 private:
  std::vector<TensorExtent> extents_;
  std::vector<int64_t> offsets_;
  std::string header_;
  int64_t num_bytes_ = 0;
};

/// The first element of part `number` of `parts` into which `all` bytes are cut evenly, in an extent
/// whose `count` elements of `element_bytes` begin at byte `begin` of them: 0 to count.
int64_t even_cut(int64_t all, int64_t parts, int64_t number, int64_t begin, int64_t element_bytes,
                 int64_t count);

std::string shard_name(size_t number);  ///< "shard_00000.safetensors"
bool is_shard_name(std::string_view name);

/// Sorts each tensor's ranges as an index has them. UserError with `path` if they do not tile it.
void check_complete(const std::filesystem::path& path, Index& index);

}  // namespace tessera::checkpoint
