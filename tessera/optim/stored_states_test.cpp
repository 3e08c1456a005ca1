// States on drives beside the same states in memory: the same bits.
#include "tessera/optim/stored_states.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tests/support/temporary_folder.h"

namespace tessera::optim {
namespace {

struct Case {
  std::string name;
  OptimizerOptions options;
  torch::Dtype parameter_dtype = torch::kFloat32;
};

std::vector<Case> cases() {
  return {{"adamw", {}},
          {"adamw_bf16_states",
           {.state_dtype = torch::kBFloat16, .stochastic_rounding = true, .seed = 3},
           torch::kBFloat16},
          {"adamw8bit", {.type = OptimizerType::adamw8bit}},
          {"sgd", {.type = OptimizerType::sgd, .momentum = 0.9}},
          {"lion", {.type = OptimizerType::lion}}};
}

class StoredStatesTest : public ::testing::TestWithParam<Case> {
 protected:
  offload::StorageOptions storage(int64_t buffers = 4) const {
    return {.space = {.paths = {folder_.path() / "a", folder_.path() / "b"},
                      .block_bytes = 16 << 10,
                      .queue_depth = 4,
                      .any_file_system = true},
            .buffers = buffers,
            .host_memory = buffers * (100 << 10)};
  }

  /// Slices of one part, of several, of fewer numbers than a page.
  static std::vector<Slice> slices(const Case& which, bool on_drives) {
    torch::manual_seed(5);
    std::vector<Slice> result;
    int64_t position = 0;
    for (const int64_t n : {51200, 256, 20480, 102400}) {
      const auto options = torch::dtype(which.parameter_dtype);
      result.push_back({.parameter = torch::randn({n}, options),
                        .gradient = torch::zeros({n}, options),
                        .weight_decay = 0.1,
                        .first_position = position,
                        .on_drives = on_drives});
      // The second one has states of 32 bits beside.
      if (which.options.type == OptimizerType::adamw8bit && n != 256)
        result.back().treatment = Treatment::blocks;
      position += n;
    }
    return result;
  }

  static void set_gradients(Optimizer& optimizer, int step) {
    torch::manual_seed(100 + step);
    for (const auto& slice : optimizer.slices()) {
      torch::Tensor(slice.gradient).copy_(torch::randn(slice.gradient.sizes()));
    }
  }

  static void expect_same(Optimizer& stored, Optimizer& kept) {
    for (size_t i = 0; i < kept.slices().size(); ++i) {
      EXPECT_TRUE(torch::equal(stored.slices()[i].parameter, kept.slices()[i].parameter)) << i;
      const auto states = kept.states(i);
      for (size_t k = 0; k < states.size(); ++k) {
        const auto& [kind, values] = states[k];
        const auto stand_in = stored.states(i)[k].second;
        EXPECT_TRUE(stand_in.is_meta() && stand_in.sizes() == values.sizes());
        const auto found = torch::empty_like(values);
        stored.stored_state(i, k).read(0, bytes_of(found));
        EXPECT_TRUE(torch::equal(found, values)) << i << " " << kind.name;
      }
    }
  }

  static std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
  }

  testing::TemporaryFolder folder_;
};

TEST_P(StoredStatesTest, EveryStepHasTheBitsOfStatesInMemory) {
  for (const int64_t buffers : {2, 3, 4, 7}) {
    auto options = GetParam().options;
    Optimizer kept(slices(GetParam(), false), options);
    options.storage = storage(buffers);
    Optimizer stored(slices(GetParam(), true), options);
    for (int step = 0; step < 4; ++step) {
      set_gradients(kept, step), set_gradients(stored, step);
      kept.step(1e-2, 0.7), stored.step(1e-2, 0.7);
    }
    expect_same(stored, kept);
    EXPECT_GT(stored.stored()->space().counters().read_bytes, 0);
    EXPECT_LE(stored.stored()->memory_bytes(), options.storage.host_memory);
    EXPECT_EQ(stored.state_bytes(), stored.stored()->memory_bytes());
  }
}

TEST_P(StoredStatesTest, SlicesMayComeInAnyOrder) {
  auto options = GetParam().options;
  Optimizer kept(slices(GetParam(), false), options);
  options.storage = storage();
  Optimizer stored(slices(GetParam(), true), options);
  const std::vector<std::vector<size_t>> orders{{3, 1, 2, 0}, {3, 1, 2, 0}, {0, 2, 1, 3}};
  for (int step = 0; step < std::ssize(orders); ++step) {
    for (auto* optimizer : {&kept, &stored}) {
      set_gradients(*optimizer, step);
      optimizer->begin_step();
      for (const auto slice : orders[static_cast<size_t>(step)]) optimizer->update(slice, 1e-2);
    }
  }
  expect_same(stored, kept);
}

TEST_P(StoredStatesTest, WhatIsWrittenIsUsedFromThenOn) {
  auto options = GetParam().options;
  Optimizer kept(slices(GetParam(), false), options);
  for (int step = 0; step < 2; ++step) set_gradients(kept, step), kept.step(1e-2);
  options.storage = storage();
  auto own = slices(GetParam(), true);
  Optimizer stored(std::move(own), options);
  set_gradients(stored, 7), stored.step(1e-2);  // what it has in memory is of no use then
  for (size_t i = 0; i < kept.slices().size(); ++i) {
    torch::Tensor(stored.slices()[i].parameter).copy_(kept.slices()[i].parameter);
    const auto states = kept.states(i);
    for (size_t k = 0; k < states.size(); ++k) {
      // In pieces that begin anywhere.
      const auto bytes = bytes_of(states[k].second);
      for (size_t begin = 0; begin < bytes.size(); begin += 12345) {
        stored.stored_state(i, k).write(
            static_cast<int64_t>(begin),
            bytes.subspan(begin, std::min<size_t>(12345, bytes.size() - begin)));
      }
    }
  }
  stored.set_num_steps(kept.num_steps());
  expect_same(stored, kept);
  set_gradients(kept, 3), set_gradients(stored, 3);
  kept.step(1e-2), stored.step(1e-2);
  expect_same(stored, kept);
}

INSTANTIATE_TEST_SUITE_P(All, StoredStatesTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(StoredStates, BuffersThatHoldNothingAreNamed) {
  const testing::TemporaryFolder folder;
  offload::StorageOptions options{.space = {.paths = {folder.path()}, .any_file_system = true},
                                  .host_memory = 32 << 10};
  try {
    const StoredStates states({{.numbers = 1 << 20, .kinds = {{"exp_avg"}, {"exp_avg_sq"}}}},
                              options);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "host_memory: expected at least 32.0 KiB for each of the buffers, got 16.0 KiB");
  }
}

}  // namespace
}  // namespace tessera::optim
