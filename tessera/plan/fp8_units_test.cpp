#include "tessera/plan/fp8_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum Way { kRefused, kEmulated, kDevice };

Way way_of(Matmul matmul, Fp8Emulate emulate, const std::optional<GpuModel>& gpu) {
  try {
    return choose_units(matmul, emulate, gpu).by_device ? kDevice : kEmulated;
  } catch (const UserError&) {
    return kRefused;
  }
}

constexpr Matmul kRecipes[] = {Matmul::fp8_tensor,      Matmul::fp8_delayed, Matmul::fp8_row,
                               Matmul::fp8_row_wgrad16, Matmul::fp8_block,   Matmul::mxfp8};

/// What LibTorch's ScaledBlas.cpp lets a GPU do: by tensor and by row, blocks, 32 with E8M0.
TEST(Fp8Units, AreThoseThatTheGpuAndItsCublasHave) {
  struct Row {
    GpuModel gpu;
    Way plain, block, mx;
  };
  const Row rows[] = {{{7, 5, 13000}, kRefused, kRefused, kRefused},   // Turing
                      {{8, 0, 13000}, kRefused, kRefused, kRefused},   // A100
                      {{8, 6, 13000}, kRefused, kRefused, kRefused},   // Ampere
                      {{8, 9, 13000}, kDevice, kEmulated, kEmulated},  // Ada
                      {{9, 0, 13000}, kDevice, kDevice, kEmulated},    // Hopper
                      {{9, 0, 12090}, kDevice, kDevice, kEmulated},
                      {{9, 0, 12080}, kDevice, kEmulated, kEmulated},
                      {{10, 0, 13000}, kDevice, kEmulated, kDevice},  // B200
                      {{10, 3, 13000}, kDevice, kEmulated, kDevice},  // B300
                      {{10, 0, 12080}, kDevice, kEmulated, kEmulated},
                      {{12, 0, 13000}, kDevice, kEmulated, kEmulated}};  // RTX 50
  for (const auto& [gpu, plain, block, mx] : rows) {
    for (const auto matmul : kRecipes) {
      SCOPED_TRACE(fmt::format("{} on {}.{}", text_of(matmul), gpu.major, gpu.minor));
      const Way own = matmul == Matmul::fp8_block ? block : matmul == Matmul::mxfp8 ? mx : plain;
      EXPECT_EQ(way_of(matmul, Fp8Emulate::automatic, gpu), own);
      EXPECT_EQ(way_of(matmul, Fp8Emulate::never, gpu), own == kDevice ? kDevice : kRefused);
      EXPECT_EQ(way_of(matmul, Fp8Emulate::always, gpu), kEmulated);
      EXPECT_NE(choose_units(matmul, Fp8Emulate::always, gpu).note, "");
    }
  }
}

TEST(Fp8Units, TheCpuHasNone) {
  for (const auto matmul : kRecipes) {
    EXPECT_EQ(way_of(matmul, Fp8Emulate::automatic, std::nullopt), kEmulated);
    EXPECT_EQ(way_of(matmul, Fp8Emulate::always, std::nullopt), kEmulated);
    EXPECT_EQ(way_of(matmul, Fp8Emulate::never, std::nullopt), kRefused);
    EXPECT_EQ(choose_units(matmul, Fp8Emulate::automatic, std::nullopt).note, "");
  }
}

std::string refusal(Matmul matmul, Fp8Emulate emulate, const std::optional<GpuModel>& gpu) {
  try {
    choose_units(matmul, emulate, gpu);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Fp8Units, RefusalsNameRecipeAndGpus) {
  EXPECT_EQ(
      refusal(Matmul::fp8_row, Fp8Emulate::automatic, GpuModel{8, 0, 13000}),
      "precision.matmul: fp8_row needs a GPU of compute capability 8.9 or newer (Ada, Hopper, "
      "Blackwell), this one has compute capability 8.0, CUDA 13.0; set precision.matmul to "
      "as_compute, or precision.fp8_emulate to true to see what 8 bits do to the loss");
  EXPECT_THAT(refusal(Matmul::fp8_block, Fp8Emulate::never, GpuModel{10, 0, 13000}),
              AllOf(HasSubstr("fp8_block needs a GPU of compute capability 9.0 (Hopper)"),
                    HasSubstr("this one has compute capability 10.0")));
  EXPECT_THAT(refusal(Matmul::mxfp8, Fp8Emulate::never, std::nullopt),
              AllOf(HasSubstr("precision.fp8_emulate: false"),
                    HasSubstr("10.0 or 10.3 (Blackwell)"), HasSubstr("computes on the CPU")));
}

}  // namespace
}  // namespace tessera::plan
