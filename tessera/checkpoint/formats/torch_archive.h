// What torch.save writes: a zip file of stored entries, `*/data.pkl` (a pickle) and `*/data/KEY`,
// the bytes of the storages that its tensors are views of. Read in place; nothing is executed.
//
// Format: https://docs.pytorch.org/docs/stable/notes/serialization.html, "Serialized file format".
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/formats/pickle.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The entries of a zip file by name, as torch writes it: every entry stored and not compressed, in
/// one part, without comment, none overlapping another. Checksums are not looked at. UserError with
/// `where` for anything else. Cost: the directory at the end, and the 30 bytes before each entry.
std::map<std::string, std::string_view, std::less<>> stored_zip_entries(const std::string& where,
                                                                        std::string_view file);

/// A tensor as it was saved: a view of a storage, all of it checked to lie inside.
struct TorchTensor {
  TensorInfo info;
  std::vector<int64_t> stride;  ///< in elements, for each dim
  std::string_view storage;     ///< from the tensor's first element on

  /// Elements begin, begin + 1, .. of its row-major order, as many as fill `destination`.
  void read(int64_t begin, std::span<std::byte> destination) const;
};

class TorchArchive {
 public:
  /// `file`, the bytes of the whole archive, must outlive it. UserError with `where`: no such zip
  /// file, or a pickle with classes other than those of tensors. Cost: the directory and the
  /// pickle.
  TorchArchive(std::string where, std::string_view file);

  const PickleValue& root() const { return pickle_.root(); }

  /// Is it a tensor, or a parameter made of one?
  static bool is_tensor(const PickleValue& value);

  /// UserError: no tensor, a dtype that TensorInfo lacks, a storage that is missing or too small, a
  /// tensor with more elements than its storage (an expanded one).
  TorchTensor tensor(const PickleValue& value) const;

 private:
  TorchArchive(std::string where, std::map<std::string, std::string_view, std::less<>> entries);

  std::string where_;
  std::map<std::string, std::string_view, std::less<>> entries_;  ///< without the leading folder
  Pickle pickle_;
};

/// torch.NAME as a dtype ("torch.bfloat16"); nullopt if unknown.
std::optional<DType> torch_dtype_named(std::string_view name);

/// "torch.float32", .. as a list, for whitelists.
std::vector<std::string_view> torch_dtype_names();

}  // namespace tessera::checkpoint
