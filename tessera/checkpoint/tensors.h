// Stored tensors as LibTorch's, and back.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

#include "tessera/base/stripe.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

torch::Dtype torch_dtype(DType dtype);
DType stored_dtype(torch::Dtype dtype);  ///< UserError if safetensors have none such

/// Elements begin .. of those that `stripe` takes of a stored tensor into `part` [n] (contiguous,
/// on any device), whatever the dtypes. Memory: 4 MiB where dtypes or devices differ. Cost: a
/// source.read() for each run of the stripe, which is cheap where the source is mapped.
void read_into(const TensorSource& source, const std::string& name, int64_t begin,
               const torch::Tensor& part, const Stripe& stripe = {});

torch::Tensor read_tensor(const TensorSource& source, const std::string& name);

/// Writes one safetensors file that appears only when complete. Tensors lie by element size (large
/// first), then name, so that each is aligned. Tensors of any device and layout are copied.
/// UserError: a dtype that the format lacks, the name "__metadata__". SystemError: disk full,
/// folder not writable.
void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, torch::Tensor>& tensors,
                      const Metadata& metadata = {});

}  // namespace tessera::checkpoint
