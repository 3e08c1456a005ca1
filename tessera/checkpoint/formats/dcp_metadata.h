// The `.metadata` of a folder of torch.distributed.checkpoint: which tensors it holds, in what
// chunks, and where the bytes of each stand.
//
// Format: the pickled class Metadata of torch/distributed/checkpoint/metadata.py, with _StorageInfo
// of filesystem.py as storage data and the planner's map from name to path in the state dict.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/formats/dcp_chunks.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Bytes of one of the folder's files.
struct DcpPiece {
  size_t file = 0;  ///< in DcpMetadata::files
  int64_t offset = 0, length = 0;
};

struct DcpTensor {
  TensorInfo info;
  std::vector<DcpChunk> chunks;  ///< they cover the tensor exactly once
  std::vector<DcpPiece> pieces;  ///< of each chunk
};

struct DcpMetadata {
  std::vector<std::string> files;  ///< relative to the folder, inside it
  std::map<std::string, DcpTensor, std::less<>> tensors;
  std::map<std::string, DcpPiece, std::less<>>
      objects;  ///< saved with torch.save, whatever they are
  /// By name, "a.b.c", the keys that lead to it in the state dict, ("a", "b.c"). Names whose keys
  /// the writer did not keep are missing.
  std::map<std::string, std::vector<std::string>, std::less<>> paths;
};

/// Reads the bytes of a `.metadata`. UserError with `path`, one line: no such pickle, classes that
/// do not belong there (none is made), dtypes that TensorInfo lacks, chunks that overlap, leave
/// holes or reach outside their tensor, chunks without bytes, files outside the folder, bytes that
/// were transformed (compressed). Cost and memory: linear in its size, time with its logarithm.
DcpMetadata parse_dcp_metadata(const std::filesystem::path& path, std::string_view bytes);

}  // namespace tessera::checkpoint
