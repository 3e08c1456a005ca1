// A checkpoint in another number of files.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tessera/checkpoint/source_view.h"

namespace tessera::checkpoint {

struct ReshardOptions {
  std::filesystem::path source, destination;
  int64_t num_files = 1;  ///< of even size
  bool parameters_only = false;
  SourceView::Progress progress;
};

/// Writes the same content as a complete checkpoint, the folder `destination`; or, if that ends in
/// .safetensors, the tensors alone as one such file (num_files: 1), of whatever format `source` is.
/// Memory: a few parts. UserError: `source` is no checkpoint of ours (as a file: none at all) or
/// damaged, `destination` exists. SystemError: no space, ..
void reshard(const ReshardOptions& options);

}  // namespace tessera::checkpoint
