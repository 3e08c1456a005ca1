// Numbers of 8 bits in data parallelism: sums over ranks, gradients, whole weights.
#include "tessera/kernels/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

/// What a rank has of 96 numbers.
torch::Tensor numbers_of(int rank) {
  const auto place = torch::arange(96, torch::kFloat32);
  return torch::sin(place * (rank + 1)) * torch::exp2(-torch::remainder(place, 7));
}

class Fp8Sums : public ::testing::TestWithParam<int> {};

TEST_P(Fp8Sums, AreNearThoseOfFloat32AndTheSameOnAllRanks) {
  const int ranks = GetParam();
  on_mesh({.shape = {.dp_replicate = ranks}}, [&](const mesh::DeviceMesh& mesh) {
    const auto axis = mesh.axis("dp_replicate");
    auto exact = torch::zeros({96});
    for (int rank = 0; rank < ranks; ++rank) exact.add_(numbers_of(rank));
    const auto values = numbers_of(axis.rank());
    const auto before = axis.counters();
    Fp8Sum(axis, values, SumResult::all).finish();
    // Of each summand at most 2^-4 of itself is lost, and of the sum again.
    const double largest = exact.abs().max().item<double>();
    EXPECT_LT((values - exact).abs().max().item<double>(), (ranks + 1) * largest / 16);
    EXPECT_GT((values - exact).abs().max().item<double>(), 0);
    const auto of_first = values.clone();
    axis.broadcast(of_first, 0).wait();
    EXPECT_TRUE(torch::equal(of_first, values));
    if (ranks == 1) return;
    EXPECT_EQ(axis.counters().all_to_all.bytes - before.all_to_all.bytes, 96);
    EXPECT_EQ(axis.counters().all_gather.bytes - before.all_gather.bytes, 96);
  });
}

TEST_P(Fp8Sums, OfNumbersThatEightBitsHoldAreExact) {
  const int ranks = GetParam();
  on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
    const auto axis = mesh.axis("dp_shard");
    const auto values = torch::arange(32 * ranks, torch::kFloat32).remainder(5) * (axis.rank() + 1);
    const auto own = values.narrow(0, 32 * axis.rank(), 32);
    const auto expected = own / (axis.rank() + 1) * (ranks * (ranks + 1) / 2);
    Fp8Sum(axis, values, SumResult::own_part).finish();
    EXPECT_TRUE(torch::equal(own, expected));
  });
}

TEST_P(Fp8Sums, AreNotNumbersIfOneIsNot) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [&](const mesh::DeviceMesh& mesh) {
    const auto axis = mesh.axis("dp_replicate");
    for (const double bad : {INFINITY, -INFINITY, NAN}) {
      auto values = torch::ones({64});
      if (axis.rank() == 0) values[3] = bad;
      Fp8Sum(axis, values, SumResult::all).finish();
      EXPECT_TRUE(values.isnan().all().item<bool>()) << bad;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fp8Sums, ::testing::Values(1, 2, 3, 5));

/// A model of two matrices, the first of which is gathered in 8 bits.
struct Trained {
  torch::Tensor output, gradient;  ///< of the whole first matrix
  int64_t gradient_bytes = 0, code_bytes = 0;
};

nn::Linear drawn_layer() {
  torch::manual_seed(0);
  nn::Linear layer(16, 12, /*bias=*/true);
  for (const auto& parameter : layer->parameters()) parameter.detach().normal_();
  return layer;
}

Trained forward_backward(const mesh::DeviceMesh& mesh, Placement placement,
                         DataParallelOptions options) {
  auto layer = drawn_layer();
  options.unit.placement = placement;
  auto model = fully_shard(*layer, mesh, options, {.kind = UnitRuleKind::whole_model});
  torch::manual_seed(1);
  const auto x = torch::randn({4, 16});
  Trained result;
  result.output = layer(x);
  result.output.square().sum().backward();
  model.finish_backward();
  result.gradient = torch::zeros({12 * 16});
  for (const auto& buffer : model.units()[0].buffers()) {
    result.code_bytes += buffer.codes.bytes();
    result.gradient_bytes += static_cast<int64_t>(buffer.gradient_of_slice().nbytes());
    const auto numbers = buffer.gradient_numbers();
    for (const auto& extent : buffer.owned()) {
      if (extent.name != "weight") continue;
      const auto offset = extent.values.storage_offset() - buffer.slice().storage_offset();
      result.gradient.narrow(0, extent.begin, extent.length)
          .copy_(numbers.narrow(0, offset, extent.length));
    }
  }
  if (placement == Placement::replicate) return result;
  mesh.axis("dp_shard").all_reduce(result.gradient).wait();
  return result;
}

constexpr Placement kEveryPlacement[] = {Placement::replicate, Placement::shard_optimizer,
                                         Placement::shard_gradients, Placement::full_shard};

TEST(Fp8Gradients, AreKeptInAByteUnderEveryPlacement) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      for (const auto placement : kEveryPlacement) {
        if (placement == Placement::replicate && ranks > 1) continue;
        const auto plain = forward_backward(mesh, placement, {});
        const auto kept =
            forward_backward(mesh, placement, {.fp8_gradients = true, .fp8_communication = true});
        EXPECT_TRUE(torch::equal(plain.output, kept.output));
        const double largest = plain.gradient.abs().max().item<double>();
        EXPECT_LT((kept.gradient - plain.gradient).abs().max().item<double>(), largest / 7);
        EXPECT_FALSE(torch::equal(kept.gradient, plain.gradient));
        EXPECT_EQ(kept.gradient_bytes * 4, plain.gradient_bytes);
      }
    });
  }
}

TEST(Fp8Weights, AreGatheredAsEightBitsHoldThem) {
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      auto plain = drawn_layer();
      const auto weight = plain->weight.detach();
      const float scale = kernels::fp8_scale(weight.abs().max().item<float>(),
                                             kernels::Fp8Type::e4m3, kernels::Fp8ScaleRule::block);
      weight.copy_(kernels::from_fp8(kernels::to_fp8(weight, kernels::Fp8Type::e4m3, scale),
                                     torch::kFloat32, 1 / scale));
      torch::manual_seed(1);
      const auto expected = plain(torch::randn({4, 16}));
      for (const auto placement : kEveryPlacement) {
        if (placement == Placement::replicate && ranks > 1) continue;
        const auto before = mesh.axis("dp_shard").counters().all_gather.bytes;
        const auto found = forward_backward(
            mesh, placement,
            {.fp8_weights = [](const std::string& name) { return name == "weight"; }});
        EXPECT_TRUE(torch::equal(found.output, expected));
        const bool keeps = ranks == 1 || placement != Placement::full_shard;
        EXPECT_EQ(found.code_bytes, keeps ? 192 / ranks / 32 * 32 * ranks : 0);
        const auto moved = mesh.axis("dp_shard").counters().all_gather.bytes - before;
        if (ranks > 1) {
          EXPECT_LT(moved, 192 * 4);
        }
      }
    });
  }
}

}  // namespace
}  // namespace tessera::parallel
