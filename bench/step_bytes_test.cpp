#include "bench/step_bytes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_job.h"

namespace tessera::bench {
namespace {

/// The preset `tiny`: what is fixed by its shape.
constexpr int64_t kLayers = 4, kDim = 256, kRows = 8 * 64;

TEST(ByteCount, TakesWhatMovesOnceEach) {
  const auto a = at::ones({8, 16}), b = at::ones({16, 4});
  auto out = at::empty({8, 4});
  const ByteCount count;
  at::mm_out(out, a, b);        // not `out` as something read
  out.add_(1);                  // read and written
  out.copy_(at::ones({8, 4}));  // the ones and the copy are written, the ones read
  out.t().view({4, 8}).narrow(0, 0, 2);
  const auto& seen = count.operators();
  const int64_t whole = 8 * 4 * 4;
  EXPECT_EQ(seen.at("aten::mm").bytes, (8 * 16 + 16 * 4) * 4 + whole);
  EXPECT_EQ(seen.at("aten::add_").bytes, 2 * whole);
  EXPECT_EQ(seen.at("aten::copy_").bytes, 2 * whole);
  EXPECT_EQ(seen.at("aten::fill_").bytes, whole);
  EXPECT_EQ(seen.size(), 4);
}

TEST(StepBytes, AreThoseOfTheShapes) {
  const auto bytes = step_bytes(tiny_job());
  const auto of = [&](const char* name) { return bytes.operators.at(name); };
  // Weights and moments read and written, gradients read: whole numbers of float32.
  EXPECT_EQ(of("tessera::adamw").bytes, bytes.least.update);
  EXPECT_EQ(of("tessera::sum_of_squares").bytes, bytes.least.gradients);
  // Rows in and out, a weight, a number for each row; a block's second one has a residual and its sum, too.
  const int64_t norms = 2 * kLayers + 1, row = kDim * 4;
  EXPECT_EQ(of("tessera::rms_norm").calls, norms);
  EXPECT_EQ(of("tessera::rms_norm").bytes,
            norms * (2 * kRows * row + row + kRows * 4) + kLayers * 2 * kRows * row);
  EXPECT_EQ(of("tessera::attention").calls, kLayers);
  EXPECT_EQ(of("tessera::attention_backward").calls, kLayers);
  EXPECT_EQ(of("tessera::rotary").calls, 4 * kLayers);
  EXPECT_GT(bytes.touched(), bytes.least.all());
}

TEST(StepBytes, GrowWithWhatIsDoneTwice) {
  auto job = tiny_job();
  const auto plain = step_bytes(job).touched();
  EXPECT_EQ(step_bytes(job).touched(), plain);
  job.memory.checkpointing = memory::CheckpointMode::full;
  const auto again = step_bytes(job);
  EXPECT_GT(again.touched(), plain);
  EXPECT_EQ(again.operators.at("tessera::attention").calls, 2 * kLayers);
}

}  // namespace
}  // namespace tessera::bench
