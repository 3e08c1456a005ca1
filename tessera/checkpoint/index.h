// What a checkpoint holds: its index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/extent.h"
#include "tessera/checkpoint/checksum.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

inline constexpr int64_t kFormatVersion = 1;
/// The version of an index with stripes. One without is written as version 1, which older readers
/// know.
inline constexpr int64_t kStripedVersion = 2;

/// Elements of a tensor, and where they lie. Not a word about placements: whoever reads cuts the
/// tensor as it likes.
struct StoredExtent : Extent {
  size_t file = 0;     ///< in Index::files
  int64_t offset = 0;  ///< of the first byte in that file

  bool operator==(const StoredExtent&) const = default;
};

struct IndexedTensor {
  TensorInfo info;
  std::vector<StoredExtent> ranges;  ///< by first(); they tile the tensor (tiling.h)

  bool operator==(const IndexedTensor&) const = default;
};

struct IndexedFile {
  std::string name;  ///< in the checkpoint's folder
  int64_t num_bytes = 0;
  std::vector<Checksum> checksums;  ///< of each block of the file

  bool operator==(const IndexedFile&) const = default;
};

/// Names of tensors: a parameter's or buffer's own; "optimizer/exp_avg/" and so on before the
/// parameter's for the optimizer's state.
struct Index {
  int64_t step = 0;  ///< optimizer steps taken
  std::vector<IndexedFile> files;
  std::map<std::string, IndexedTensor, std::less<>> tensors;
  nlohmann::json layout;  ///< ranks, mesh and placement under which it was written: to tell people
  nlohmann::json state;   ///< what a run needs beside tensors (train/resume.h)
  nlohmann::json model;   ///< config.json of the model, as Hugging Face writes it; null: unknown
  std::string config;     ///< the job file, resolved

  bool operator==(const Index&) const = default;
};

/// {"format": "tessera-checkpoint", "version": 1, "step": .., "block_bytes": 1048576,
///  "layout": {..}, "state": {..}, "model": {..}, "config": "..",
///  "files": [{"name": .., "bytes": .., "checksums": "<16 hex digits a block>"}, ..],
///  "tensors": {NAME: {"dtype": "F32", "shape": [..],
///                     "ranges": [[begin, length, file, offset], ..]}, ..}}
/// A range of a stripe is [begin, length, file, offset, stripe_offset, run, stride]; "version" is 2
/// where there is one.
std::string format_index(const Index& index);

/// UserError with `path`, one line, at the first rule that `text` breaks: JSON without repeated
/// keys; known format and version; names of files that stay in the folder, each once, with a
/// checksum for each block; known dtypes, shapes without overflow; ranges that tile their tensor,
/// in order, and lie in their file without sharing bytes; step, layout, state and model as
/// index_schema.h says. Cost: n log n of the text's. Memory: a
/// small multiple of it.
Index parse_index(const std::filesystem::path& path, std::string_view text);

}  // namespace tessera::checkpoint
