#include "tessera/plan/fp8_units.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

constexpr int kCublasWithBlocks = 12090;

bool has_units(const GpuModel& gpu) { return gpu.major >= 9 || (gpu.major == 8 && gpu.minor >= 9); }

bool has_recipe(Matmul matmul, const GpuModel& gpu) {
  if (!has_units(gpu)) return false;
  switch (matmul) {
    case Matmul::as_compute:
      return false;
    case Matmul::fp8_tensor:
    case Matmul::fp8_delayed:
    case Matmul::fp8_row:
    case Matmul::fp8_row_wgrad16:
      return true;
    case Matmul::fp8_block:
      return gpu.major == 9 && gpu.cuda >= kCublasWithBlocks;
    case Matmul::mxfp8:
      return gpu.major == 10 && gpu.cuda >= kCublasWithBlocks;
  }
  __builtin_unreachable();
}

std::string text_of(const GpuModel& gpu) {
  return fmt::format("compute capability {}.{}, CUDA {}.{}", gpu.major, gpu.minor, gpu.cuda / 1000,
                     gpu.cuda % 1000 / 10);
}

}  // namespace

std::string units_needed(Matmul matmul) {
  switch (matmul) {
    case Matmul::as_compute:
      break;
    case Matmul::fp8_tensor:
    case Matmul::fp8_delayed:
    case Matmul::fp8_row:
    case Matmul::fp8_row_wgrad16:
      return "compute capability 8.9 or newer (Ada, Hopper, Blackwell)";
    case Matmul::fp8_block:
      return "compute capability 9.0 (Hopper) and LibTorch of CUDA 12.9 or newer";
    case Matmul::mxfp8:
      return "compute capability 10.0 or 10.3 (Blackwell) and LibTorch of CUDA 12.9 or newer";
  }
  __builtin_unreachable();
}

Fp8Choice choose_units(Matmul matmul, Fp8Emulate emulate, const std::optional<GpuModel>& gpu) {
  const auto recipe = tessera::text_of(matmul);
  if (!gpu) {
    if (emulate != Fp8Emulate::never) return {};
    user_error(
        "precision.fp8_emulate: false asks for a GPU of {}, and this rank computes on the CPU; set "
        "auto or true",
        units_needed(matmul));
  }
  if (emulate == Fp8Emulate::always) {
    return {
        .by_device = false,
        .note = fmt::format("{} is emulated, slower than compute (precision.fp8_emulate)", recipe)};
  }
  if (has_recipe(matmul, *gpu)) {
    return {.by_device = true,
            .note = fmt::format("{} by the GPU's 8-bit units ({})", recipe, text_of(*gpu))};
  }
  if (emulate == Fp8Emulate::automatic && has_units(*gpu)) {
    return {.by_device = false,
            .note = fmt::format(
                "{} is emulated, slower than compute: 8-bit units that have it need {}, "
                "this GPU has {}",
                recipe, units_needed(matmul), text_of(*gpu))};
  }
  user_error(
      "precision.matmul: {} needs a GPU of {}, this one has {}; set precision.matmul to "
      "as_compute, "
      "or precision.fp8_emulate to true to see what 8 bits do to the loss",
      recipe, units_needed(matmul), text_of(*gpu));
}

std::string units_text(Matmul matmul, Fp8Emulate emulate) {
  const auto recipe = tessera::text_of(matmul);
  if (emulate == Fp8Emulate::always) return fmt::format("{}, emulated everywhere", recipe);
  const auto units = fmt::format("{}, by 8-bit units of GPUs of {}", recipe, units_needed(matmul));
  if (emulate == Fp8Emulate::never) return units + "; nowhere else";
  const bool all_have_it = matmul != Matmul::fp8_block && matmul != Matmul::mxfp8;
  return units + (all_have_it ? "; emulated on the CPU"
                              : "; emulated on other GPUs with 8-bit units and on the CPU");
}

}  // namespace tessera::plan
