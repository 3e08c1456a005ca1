// Memory for a module's parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace tessera::nn {

/// Gives every parameter of `module`, which may be on the meta device, memory of its own size and
/// dtype on `device`, all of a dtype in one block, at multiples of 64 bytes; values are unset. Where
/// the allocator of kernels/cpu/memory.h is not installed small matrices apart from one another get
/// pages of 4 KiB, and reading them takes up to 1.6 times as long as in huge pages.
void allocate_parameters(torch::nn::Module& module, torch::Device device);

}  // namespace tessera::nn
