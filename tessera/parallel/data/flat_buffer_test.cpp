#include "tessera/parallel/data/flat_buffer.h"

#include <gtest/gtest.h>

#include "tessera/autograd/gradient_sink.h"

namespace tessera::parallel {
namespace {

std::vector<FlatBuffer::Named> norm_and_weight() {
  return {{"norm", torch::ones({5}, torch::requires_grad())},
          {"weight", torch::full({3, 7}, 2.f, torch::requires_grad())}};
}

bool has_two_dims(const std::string&, const torch::Tensor& parameter) {
  return parameter.dim() > 1;
}

TEST(FlatBuffer, HoldsParametersAsAlignedViewsDecayedFirst) {
  const auto parameters = norm_and_weight();
  FlatBuffer buffer(parameters, {.decays = has_two_dims});
  EXPECT_EQ(buffer.entries()[0].name, "weight");
  ASSERT_EQ(buffer.groups().size(), 2);
  EXPECT_TRUE(buffer.groups()[0].decays);
  EXPECT_EQ(buffer.groups()[0].end, 32);
  EXPECT_EQ(buffer.size(), 64);
  EXPECT_EQ(buffer.whole.tensor().sum().item<float>(), 5 + 42);
  EXPECT_TRUE(buffer.plan().slice_in_whole);
  buffer.whole.tensor().fill_(3);
  EXPECT_EQ(parameters[0].second.sum().item<float>(), 15);
  buffer.fill_gradient();
  parameters[1].second.square().sum().backward();
  EXPECT_EQ(buffer.gradient.tensor().sum().item<float>(), 21 * 6);
}

TEST(FlatBuffer, GradientsAreZeroWhereNothingArrived) {
  for (const auto placement : {Placement::replicate, Placement::full_shard}) {
    const auto parameters = norm_and_weight();
    FlatBuffer buffer(parameters,
                      {.placement = placement, .num_slices = 2, .decays = has_two_dims});
    for (int step = 0; step < 3; ++step) {
      buffer.begin_gradient();
      const auto sink = autograd::gradient_sink(parameters[1].second);
      EXPECT_FALSE(autograd::adds_to(sink));
      sink.fill_(step + 1);
      buffer.fill_gradient();
      buffer.note_arrivals();
      EXPECT_EQ(buffer.gradient.tensor().sum().item<float>(), 21 * (step + 1)) << "gaps, too";
      EXPECT_TRUE(buffer.arrived(0));
      EXPECT_FALSE(buffer.arrived(1));
      buffer.clear_gradient();
      buffer.free_gradient();
      buffer.reset_arrivals();
    }
    // A user dropped one gradient, and froze another parameter after that.
    buffer.begin_gradient();
    for (const auto& [_, parameter] : parameters) parameter.grad().fill_(7);
    parameters[0].second.mutable_grad().reset();
    parameters[0].second.requires_grad_(false);
    parameters[1].second.mutable_grad().reset();
    buffer.begin_gradient();
    buffer.fill_gradient();
    EXPECT_EQ(buffer.gradient.tensor().abs().sum().item<float>(), 0);
  }
}

TEST(FlatBuffer, BlocksThatShareAScaleLieAlikeForAnyNumberOfSlices) {
  for (const int slices : {1, 2, 3}) {
    for (int slice = 0; slice < slices; ++slice) {
      std::vector<FlatBuffer::Named> parameters{
          {"norm", torch::ones({5}, torch::requires_grad())},
          {"first", torch::ones({30, 10}, torch::requires_grad())},
          {"bias", torch::ones({300}, torch::requires_grad())},
          {"second", torch::ones({700, 1}, torch::requires_grad())}};
      FlatBuffer buffer(parameters, {.placement = Placement::full_shard,
                                     .num_slices = slices,
                                     .slice = slice,
                                     .decays = has_two_dims,
                                     .treatment = [](const std::string&, const auto& parameter) {
                                       return parameter.numel() >= 300 ? optim::Treatment::blocks
                                                                       : optim::Treatment::elements;
                                     }});
      std::vector<std::string> names;
      for (const auto& entry : buffer.entries()) names.push_back(entry.name);
      EXPECT_EQ(names, (std::vector<std::string>{"first", "second", "bias", "norm"}));
      EXPECT_EQ(buffer.plan().in_blocks, 1300);
      EXPECT_EQ(buffer.slice_size() % 256, 0);
      EXPECT_EQ(buffer.groups()[1].end, 512 + 768 + 512);  // what decays, what does not
      for (const auto& extent : buffer.owned()) {
        EXPECT_TRUE(extent.begin % 256 == 0 || extent.name == "norm") << extent.name;
      }
    }
  }
}

TEST(FlatBuffer, ViewsAndSavedTensorsOutliveTheMemory) {
  const auto parameters = norm_and_weight();
  FlatBuffer buffer(
      parameters,
      {.placement = Placement::full_shard, .num_slices = 2, .slice = 1, .decays = has_two_dims});
  EXPECT_EQ(buffer.slice().sum().item<float>(), 5);  // the norm: elements 32 to 37
  EXPECT_FALSE(buffer.whole.allocated());
  EXPECT_THROW(parameters[1].second.sum(), c10::Error);
  EXPECT_THROW(parameters[1].second.detach().zero_(), c10::Error);
  buffer.receive_whole(), buffer.whole_arrived();
  buffer.whole.tensor().fill_(4);
  const auto x = torch::ones({7}, torch::requires_grad());
  const auto y = parameters[1].second.mv(x).sum();
  buffer.free_whole();
  buffer.receive_whole(), buffer.whole_arrived();
  buffer.whole.tensor().fill_(5);  // no version counter of a parameter moves
  buffer.begin_gradient();
  buffer.fill_gradient();
  y.backward();
  EXPECT_EQ(x.grad().sum().item<float>(), 7 * 3 * 5);
  EXPECT_EQ(buffer.gradient.tensor().sum().item<float>(), 21);
}

TEST(FlatBuffer, ASliceOfMetaParametersIsFilledPieceByPiece) {
  const std::vector<FlatBuffer::Named> parameters{
      {"a", torch::empty({40}, torch::device(torch::kMeta).requires_grad(true))},
      {"b", torch::empty({2, 10}, torch::device(torch::kMeta).requires_grad(true))}};
  const auto member = parameters[1].second;  // as a module's own handle
  for (int rank = 0; rank < 2; ++rank) {
    // 64 elements for a, 32 for b, padded to 128: b begins rank 1's slice.
    FlatBuffer buffer(
        {{"a", torch::empty({40}, torch::kMeta)}, {"b", torch::empty({20}, torch::kMeta)}},
        {.placement = Placement::full_shard, .num_slices = 2, .slice = rank});
    buffer.fill([](const std::string& name, int64_t begin, const torch::Tensor& part) {
      part.copy_(torch::arange(begin, begin + part.numel()) + (name == "b" ? 100 : 0));
    });
    EXPECT_EQ(buffer.slice().sum().item<float>(), rank == 0 ? 780 : 2190);
  }
  FlatBuffer buffer(parameters, {});
  EXPECT_FALSE(member.is_meta());
  EXPECT_TRUE(member.requires_grad());
  EXPECT_EQ(member.sum().item<float>(), 0);
  buffer.fill_gradient();
  (member * 2).sum().backward();
  EXPECT_EQ(buffer.gradient.tensor().sum().item<float>(), 40);
}

TEST(FlatBuffer, FrozenParametersHaveNoGradient) {
  FlatBuffer buffer({{"frozen", torch::ones({100})}}, {});
  buffer.begin_gradient();
  EXPECT_EQ(buffer.gradient.bytes(), 0);
  EXPECT_FALSE(buffer.trained());
}

}  // namespace
}  // namespace tessera::parallel
