// One file of a checkpoint: pieces of tensors as a safetensors file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/stripe.h"
#include "tessera/checkpoint/index.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Elements [begin, begin + length) of those that a stripe takes of a tensor, row-major.
struct Piece {
  std::string name;
  TensorInfo info;  ///< of the whole tensor
  int64_t begin = 0, length = 0;
  Stripe stripe;  ///< of the whole tensor

  int64_t num_bytes() const { return length * dtype_bytes(info.dtype); }
};

/// Where pieces lie in a file. In it a whole tensor has its own name and shape, so that any reader
/// of safetensors finds it; a part is "NAME[begin:end]" of shape [length], or, of a stripe,
/// "NAME[begin:end of offset+run/stride]", where begin and end count the stripe's elements.
class ShardLayout {
 public:
  /// Lays the pieces out in the given order but for the size of their elements (large first, so
  /// that all are aligned). A piece that lies in the tensor without a gap loses its stripe.
  explicit ShardLayout(std::vector<Piece> pieces);

  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t offset(size_t piece) const { return offsets_[piece]; }  ///< in the file
  int64_t num_bytes() const { return num_bytes_; }                ///< of the file

  /// copy(piece, begin, destination): bytes begin .. of a piece.
  using Copy = std::function<void(size_t piece, int64_t begin, std::span<std::byte> destination)>;

  /// Bytes offset .. of the file: header, and what `copy` gives.
  void fill(int64_t offset, std::span<std::byte> destination, const Copy& copy) const;

  /// Adds the pieces to the index's tensors as ranges of its file number `file`.
  void add_to(Index& index, size_t file) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<int64_t> offsets_;
  std::string header_;
  int64_t num_bytes_ = 0;
};

/// The first element of part `number` of `parts` into which `all` bytes are cut evenly, in a piece
/// whose `count` elements of `element_bytes` begin at byte `begin` of them: 0 to count.
int64_t even_cut(int64_t all, int64_t parts, int64_t number, int64_t begin, int64_t element_bytes,
                 int64_t count);

std::string shard_name(size_t number);  ///< "shard_00000.safetensors"
bool is_shard_name(std::string_view name);

/// Sorts each tensor's ranges as an index has them. UserError with `path` if they do not tile it.
void check_complete(const std::filesystem::path& path, Index& index);

}  // namespace tessera::checkpoint
