// By what 8-bit products are computed: units of the device, or emulated.
#pragma once

#include <optional>
#include <string>

#include "tessera/base/fp8.h"
#include "tessera/base/gpu_model.h"

namespace tessera::plan {

/// What a GPU needs so that its units multiply by a recipe (not as_compute): "compute capability 8.9 or newer (..)". A
/// scale of a tensor or a row is what all have; blocks of 128 are Hopper's (cuBLAS of CUDA 12.9), of 32 with E8M0
/// Blackwell's.
std::string units_needed(Matmul matmul);

struct Fp8Choice {
  bool by_device = false;
  std::string note;  ///< for the start of a run on a GPU; empty on the CPU
};

/// `gpu`: what a rank computes on, none: the CPU. UserError: GPUs below 8.9 unless emulation is told; `never` where
/// units do not have the recipe.
Fp8Choice choose_units(Matmul matmul, Fp8Emulate emulate, const std::optional<GpuModel>& gpu);

/// The same for whoever has no device yet, of all of them: a line for `tessera precision`.
std::string units_text(Matmul matmul, Fp8Emulate emulate);

}  // namespace tessera::plan
