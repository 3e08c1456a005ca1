// A whole checkpoint written by one process, of tensors from anywhere.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

struct WriteOptions {
  Index about;  ///< all but files and tensors
  std::optional<double> validation_loss;
  std::vector<std::filesystem::path> assets;  ///< small files carried along
  int64_t num_files = 1;                      ///< of even size
};

/// Writes all tensors of `source` as the complete checkpoint `destination`, a folder that appears
/// when all of it is on disk. With one file every tensor lies in one piece, as any reader of
/// safetensors expects. Memory: a few parts of 8 MiB. UserError: `destination` exists, more files
/// than pages of data. SystemError: no space, ..
void write_checkpoint(const TensorSource& source, const std::filesystem::path& destination,
                      WriteOptions options);

/// A copy of a small file in `folder`, flushed, for Index::files.
IndexedFile write_asset(const std::filesystem::path& asset, const std::filesystem::path& folder);

/// The files of a checkpoint that hold no tensors, each read and compared with its checksum.
std::vector<std::filesystem::path> checked_assets(const Checkpoint& checkpoint);

/// What WriteOptions::about is for the same content elsewhere.
Index about(const Checkpoint& checkpoint);

}  // namespace tessera::checkpoint
