// Stored tensors into files, a buffer at a time.
#pragma once

#include <string>

#include "tessera/base/file.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Elements that are in memory at a time.
inline constexpr int64_t kBufferElements = int64_t{1} << 19;

/// Appends all values of a tensor as `dtype`, to which they must be convertible. Memory: a few MB. UserError: a
/// number is beyond f16.
void write_tensor(const TensorSource& source, const std::string& name, DType dtype,
                  AtomicFile& file);

/// Writes tensors of `source`, as the dtypes of `tensors` say, into one safetensors file that
/// appears when complete. Larger elements lie first, so that all are aligned.
void write_safetensors(const TensorSource& source,
                       std::vector<std::pair<std::string, TensorInfo>> tensors,
                       const std::filesystem::path& path, const Metadata& metadata);

/// Appends `values` of dtype `from`, of the tensor `name`, as `to`. UserError: as write_tensor.
void write_values(const std::string& name, std::span<const std::byte> values, DType from, DType to,
                  AtomicFile& file);

}  // namespace tessera::checkpoint
