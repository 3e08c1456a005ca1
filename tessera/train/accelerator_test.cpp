#include "tessera/train/accelerator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tessera/train/engine_options.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"

namespace tessera {
namespace {

namespace accelerate = config::accelerate;

// ---- a small problem ---------------------------------------------------------------------------

struct BlockImpl : nn::Hookable {
  BlockImpl() { register_module("up", up), register_module("down", down); }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up{5, 7}, down{7, 5};
};

struct NetImpl : nn::Hookable {
  NetImpl() {
    register_module("first", first), register_module("second", second);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(second(first(x))); }
  nn::Hooked<BlockImpl> first, second;
  torch::nn::Linear head{5, 3};
};
using Net = nn::Hooked<NetImpl>;

/// The same net as a user of LibTorch writes it.
struct PlainNetImpl : torch::nn::Module {
  PlainNetImpl() { register_module("first", first), register_module("head", head); }
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(first(x))); }
  torch::nn::Linear first{5, 7}, head{7, 3};
};
TORCH_MODULE(PlainNet);

class Rows : public torch::data::Dataset<Rows> {
 public:
  explicit Rows(int64_t count) : count_(count) {
    const auto generator = torch::make_generator<torch::CPUGeneratorImpl>(7);
    data_ = torch::randn({count, 5}, generator);
    targets_ = torch::arange(count).remainder(3);
  }
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {data_[i], targets_[i]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(count_); }

 private:
  int64_t count_;
  torch::Tensor data_, targets_;
};

auto make_loader(int64_t rows, int64_t batch_size) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Rows(rows).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions(static_cast<size_t>(batch_size)));
}

template <typename Model>
Model make_model(uint64_t seed = 3) {
  torch::manual_seed(seed);
  return Model();
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits, target);
}

accelerate::Settings settings_of(const std::map<std::string, std::string>& values) {
  accelerate::Settings settings;
  for (const auto& [key, value] : values) {
    settings.set({.key = key, .value = value, .origin = "test"});
  }
  return settings;
}

using Config = std::map<std::string, std::string>;
const std::map<std::string, Config> kConfigs{
    {"fsdp_full_shard",
     {{"distributed_type", "FSDP"},
      {"fsdp_config.fsdp_version", "1"},
      {"fsdp_config.fsdp_sharding_strategy", "FULL_SHARD"},
      {"fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", "Block"}}},
    {"fsdp_shard_grad_op",
     {{"distributed_type", "FSDP"},
      {"fsdp_config.fsdp_version", "1"},
      {"fsdp_config.fsdp_sharding_strategy", "SHARD_GRAD_OP"},
      {"fsdp_config.fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"},
      {"fsdp_config.fsdp_min_num_params", "50"}}},
    {"fsdp2_checkpointed",
     {{"distributed_type", "FSDP"},
      {"fsdp_config.fsdp_version", "2"},
      {"fsdp_config.fsdp_reshard_after_forward", "true"},
      {"fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", "Block"},
      {"fsdp_config.fsdp_activation_checkpointing", "true"}}},
    {"fsdp_checkpointed_by_size",
     {{"distributed_type", "FSDP"},
      {"fsdp_config.fsdp_version", "1"},
      {"fsdp_config.fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"},
      {"fsdp_config.fsdp_min_num_params", "50"},
      {"fsdp_config.fsdp_activation_checkpointing", "true"}}},
    {"deepspeed_1", {{"distributed_type", "DEEPSPEED"}, {"deepspeed_config.zero_stage", "1"}}},
    {"deepspeed_2", {{"distributed_type", "DEEPSPEED"}, {"deepspeed_config.zero_stage", "2"}}},
    {"deepspeed_3_offload",
     {{"distributed_type", "DEEPSPEED"},
      {"deepspeed_config.zero_stage", "3"},
      {"deepspeed_config.offload_param_device", "cpu"},
      {"deepspeed_config.offload_optimizer_device", "cpu"}}},
};

constexpr int64_t kRows = 24, kGlobalBatch = 12;

/// Losses of every step of three epochs, and the parameters at the end.
struct History {
  std::vector<double> losses;
  std::map<std::string, torch::Tensor> parameters;
};

template <typename Model>
History plain_loop(int64_t rows = kRows, int64_t batch = kGlobalBatch) {
  auto model = make_model<Model>();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  auto loader = make_loader(rows, batch);
  History history;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : *loader) {
      auto loss = loss_of(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      history.losses.push_back(loss.template item<double>());
    }
  }
  for (const auto& item : model->named_parameters()) {
    history.parameters[item.key()] = item.value().detach().clone();
  }
  return history;
}

template <typename Model>
History accelerated_loop(Accelerator& accelerator, int64_t batch_size, Model net) {
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto rows = make_loader(kRows, batch_size);
  auto [loader, model, optimizer] = accelerator.prepare(rows, net, adamw);
  History history;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : loader) {
      const auto scope = accelerator.accumulate(model);
      auto loss = loss_of(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      history.losses.push_back(accelerator.reduce(loss, "mean").template item<double>());
    }
  }
  return history;
}

class AcceleratorTest : public RankTest {};
class AcceleratorConfigTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AcceleratorConfigTest, GivesTheLossesOfThePlainLoop) {
  const auto expected = plain_loop<Net>();
  for (const int ranks : {1, 2, 3}) {
    on_mesh({.shape = {.dp_shard = ranks}}, [&](const mesh::DeviceMesh& mesh) {
      Accelerator accelerator({}, mesh, settings_of(kConfigs.at(GetParam())));
      const auto found = accelerated_loop(accelerator, kGlobalBatch / ranks, make_model<Net>());
      ASSERT_EQ(found.losses.size(), expected.losses.size());
      for (size_t i = 0; i < found.losses.size(); ++i) {
        EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-6) << "step " << i;
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Configs, AcceleratorConfigTest,
                         ::testing::Values("fsdp_full_shard", "fsdp_shard_grad_op",
                                           "fsdp2_checkpointed", "fsdp_checkpointed_by_size",
                                           "deepspeed_1", "deepspeed_2", "deepspeed_3_offload"),
                         [](const auto& info) { return info.param; });

/// A layer of a user's, whose last product is not added to anything.
struct SquashedImpl : nn::Hookable {
  SquashedImpl() { register_module("inner", inner); }
  torch::Tensor forward(const torch::Tensor& x) { return inner(x).tanh(); }
  nn::Linear inner{5, 5};
};

TEST(ActivationCheckpointing, KeepsTheLastProductOfAUsersModule) {
  torch::manual_seed(3);
  nn::Hooked<SquashedImpl> plain, checkpointed;
  {
    const torch::NoGradGuard no_grad;
    plain->inner->weight.normal_();  // layers leave values to the model
    checkpointed->inner->weight.copy_(plain->inner->weight);
  }
  train::checkpoint_activations({checkpointed.get()}, train::BlockEnd::any,
                                {.checkpointing = memory::CheckpointMode::selective});
  const auto x = torch::ones({2, 5});
  plain(x).sum().backward();
  checkpointed(x).sum().backward();
  expect_close(checkpointed->inner->weight.grad(), plain->inner->weight.grad());
}

TEST(ActivationCheckpointing, WithoutLayersIsAnError) {
  const mesh::DeviceMesh mesh;
  Accelerator accelerator({}, mesh,
                          settings_of({{"distributed_type", "FSDP"},
                                       {"fsdp_config.fsdp_version", "1"},
                                       {"fsdp_config.fsdp_auto_wrap_policy", "NO_WRAP"},
                                       {"fsdp_config.fsdp_activation_checkpointing", "true"}}));
  auto net = make_model<Net>();
  EXPECT_THROW(accelerator.prepare(net), UserError);
}

/// Runs `body` on ranks that replicate.
void on_replicas(int ranks, const AcceleratorOptions& options,
                 const std::function<void(Accelerator&)>& body) {
  on_mesh({.shape = {.dp_replicate = ranks}}, [&](const mesh::DeviceMesh& mesh) {
    Accelerator accelerator(options, mesh, settings_of({{"distributed_type", "MULTI_CPU"}}));
    body(accelerator);
  });
}

TEST_P(AcceleratorTest, ReplicasGiveTheLossesOfThePlainLoop) {
  const auto expected = plain_loop<Net>();
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    const auto found = accelerated_loop(accelerator, kGlobalBatch / GetParam(), make_model<Net>());
    for (size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses.at(i), 2e-6) << "step " << i;
    }
  });
}

TEST_P(AcceleratorTest, TakesAModuleThatIsNotHookable) {
  const auto expected = plain_loop<PlainNet>();
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    auto net = make_model<PlainNet>();
    const auto found = accelerated_loop(accelerator, kGlobalBatch / GetParam(), net);
    for (size_t i = 0; i < found.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses.at(i), 2e-6) << "step " << i;
    }
    EXPECT_EQ(accelerator.unwrap_model(accelerator.prepare(net)), net.ptr());
  });
}

TEST_P(AcceleratorTest, AccumulatesWhatAWholeBatchGives) {
  const auto expected = plain_loop<Net>();
  on_replicas(GetParam(), {.gradient_accumulation_steps = 2}, [&](Accelerator& accelerator) {
    const auto found =
        accelerated_loop(accelerator, kGlobalBatch / 2 / GetParam(), make_model<Net>());
    ASSERT_EQ(found.losses.size(), 2 * expected.losses.size());
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR((found.losses[2 * i] + found.losses[2 * i + 1]) / 2, expected.losses[i], 2e-6);
    }
  });
}

TEST_P(AcceleratorTest, TheRanksStartWithRank0sParameters) {
  const auto expected = plain_loop<Net>();
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    const auto seed = 3 + static_cast<uint64_t>(accelerator.process_index());
    const auto found =
        accelerated_loop(accelerator, kGlobalBatch / GetParam(), make_model<Net>(seed));
    EXPECT_NEAR(found.losses.back(), expected.losses.back(), 2e-6);
  });
}

TEST_P(AcceleratorTest, KeepsTwoParameterGroupsApart) {
  const auto groups_of = [](Net& net) {
    std::vector<torch::Tensor> weights, biases;
    for (const auto& item : net->named_parameters()) {
      (item.key().ends_with("bias") ? biases : weights).push_back(item.value());
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(weights, std::make_unique<torch::optim::SGDOptions>(
                                     torch::optim::SGDOptions(0.1).weight_decay(0.5)));
    groups.emplace_back(biases,
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.01)));
    return groups;
  };
  const auto step = [](auto& model, auto& optimizer, const auto& backward) {
    for (int i = 0; i < 3; ++i) {
      auto loss = model(torch::ones({4, 5})).square().mean();
      backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  auto plain = make_model<Net>();
  torch::optim::SGD sgd(groups_of(plain), torch::optim::SGDOptions(0.1));
  step(plain, sgd, [](auto& loss) { loss.backward(); });
  const auto expected = plain(torch::ones({1, 5})).detach();
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    auto net = make_model<Net>();
    torch::optim::SGD own(groups_of(net), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, own);
    step(model, optimizer, [&](auto& loss) { accelerator.backward(loss); });
    expect_close(model(torch::ones({1, 5})).detach(), expected);
  });
}

TEST_P(AcceleratorTest, ClipsTheNormOfTheWholeGradient) {
  auto plain = make_model<Net>();
  (100 * plain(torch::ones({4, 5})).square().mean()).backward();
  const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    auto net = make_model<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(100 * model(torch::ones({4, 5})).square().mean());
    EXPECT_NEAR(accelerator.clip_grad_norm_(net->parameters(), 0.5), norm, 1e-4 * norm);
    EXPECT_NEAR(accelerator.clip_grad_norm_(net->parameters(), 1e9), 0.5, 1e-4);
  });
}

TEST_P(AcceleratorTest, GathersEachRowOnceForMetrics) {
  for (const bool dispatch : {false, true}) {
    for (const bool split : {false, true}) {
      on_replicas(GetParam(), {.split_batches = split, .dispatch_batches = dispatch},
                  [&](Accelerator& accelerator) {
                    auto rows = make_loader(20, split ? 6 : 3);
                    auto loader = accelerator.prepare(rows);
                    std::vector<torch::Tensor> seen;
                    for (auto& batch : loader) {
                      seen.push_back(accelerator.gather_for_metrics(batch.data));
                      // One process has the last batch's rows alone, as have all of those to which
                      // rank 0 sends theirs.
                      const auto rows_of_step = split ? 6 : 3 * GetParam();
                      const bool last = std::ssize(seen) * rows_of_step > 20;
                      if (last && (dispatch || GetParam() == 1)) continue;
                      EXPECT_EQ(batch.data.size(0), split ? 6 / GetParam() : 3);
                    }
                    const auto all = torch::cat(seen);
                    ASSERT_EQ(all.size(0), 20);
                    const auto expected = Rows(20);
                    for (int64_t i = 0; i < 20; ++i) {
                      auto dataset = expected;
                      EXPECT_TRUE(torch::equal(all[i], dataset.get(static_cast<size_t>(i)).data));
                    }
                  });
    }
  }
}

/// Sizes of the batches of a pass.
std::vector<int64_t> batch_sizes(auto loader) {
  std::vector<int64_t> sizes;
  for (auto& batch : loader) sizes.push_back(batch.data.size(0));
  return sizes;
}

using Sizes = std::vector<int64_t>;

TEST_P(AcceleratorTest, OneProcessGetsTheLoadersBatchesAsTheyAre) {
  if (GetParam() > 1) return;
  for (const bool split : {false, true}) {
    on_replicas(1, {.split_batches = split}, [&](Accelerator& accelerator) {
      auto rows = make_loader(29, 4);
      EXPECT_EQ(batch_sizes(accelerator.prepare(rows)), (Sizes{4, 4, 4, 4, 4, 4, 4, 1}));
    });
  }
}

// Ten rows, two a process and step: the last step's are divided as evenly as can be.
TEST_P(AcceleratorTest, ARankThatReadsForAllDividesTheLastRows) {
  for (const bool even : {false, true}) {
    on_replicas(
        GetParam(), {.even_batches = even, .dispatch_batches = true}, [](Accelerator& accelerator) {
          auto rows = make_loader(10, 2);
          const std::map<int, Sizes> expected{{1, {2, 2, 2, 2, 2}}, {2, {2, 2, 1}}, {3, {2, 2}}};
          EXPECT_EQ(batch_sizes(accelerator.prepare(rows)), expected.at(GetParam()));
        });
  }
}

TEST_P(AcceleratorTest, AnEvaluationInsideOfAnEpochLeavesItsAccumulationAlone) {
  on_replicas(GetParam(), {.gradient_accumulation_steps = 3}, [](Accelerator& accelerator) {
    auto rows = make_loader(6 * GetParam(), 1), few = make_loader(2 * GetParam() + 1, 1);
    auto [loader, evaluated] = accelerator.prepare(rows, few);
    const auto whole = torch::ones({2});
    std::vector<bool> synchronised;
    const auto accumulate = [&] {
      const auto scope = accelerator.accumulate();
      synchronised.push_back(accelerator.sync_gradients());
    };
    for ([[maybe_unused]] auto& batch : loader) {
      accumulate();
      if (synchronised.size() == 1 || synchronised.size() == 4) {
        for ([[maybe_unused]] auto& each : evaluated) {
        }
        EXPECT_EQ(accelerator.gather_for_metrics(whole).size(0), 2 * GetParam());
      }
      if (synchronised.size() == 5) {  // one that is left
        for ([[maybe_unused]] auto& each : evaluated) break;
      }
    }
    EXPECT_EQ(synchronised, (std::vector<bool>{false, false, true, false, false, true}));
    synchronised.clear();
    for (int i = 0; i < 4; ++i) accumulate();
    EXPECT_EQ(synchronised, (std::vector<bool>{false, false, true, false}));
    EXPECT_EQ(accelerator.gather_for_metrics(whole).size(0), 2 * GetParam());
  });
}

TEST_P(AcceleratorTest, ShufflesAlikeOnAllRanks) {
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    torch::manual_seed(static_cast<uint64_t>(accelerator.process_index()));
    auto rows = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        Rows(24).map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(2));
    auto loader = accelerator.prepare(rows);
    std::vector<torch::Tensor> seen;
    for (auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch.data));
    const auto sum = torch::cat(seen).sum(0);  // each row once: only if all drew one order
    torch::Tensor expected = torch::zeros({5});
    Rows all(24);
    for (size_t i = 0; i < 24; ++i) expected += all.get(i).data;
    expect_close(sum, expected);
  });
}

TEST_P(AcceleratorTest, SkipsBatchesOnce) {
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    auto rows = make_loader(4 * GetParam(), 1);
    auto loader = accelerator.skip_first_batches(accelerator.prepare(rows), 3);
    const auto count = [&] {
      int batches = 0;
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      return batches;
    };
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(count(), 4);
  });
}

TEST_P(AcceleratorTest, SchedulersStepOncePerProcessAndOnlyWithUpdates) {
  on_replicas(GetParam(), {.gradient_accumulation_steps = 2}, [&](Accelerator& accelerator) {
    auto net = make_model<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1));
    torch::optim::StepLR halves(sgd, /*step_size=*/1, /*gamma=*/0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, halves);
    for (int i = 0; i < 2; ++i) {
      const auto scope = accelerator.accumulate(model);
      EXPECT_EQ(accelerator.sync_gradients(), i == 1);
      accelerator.backward(model(torch::ones({1, 5})).sum());
      optimizer.step();
      scheduler.step();
      // LibTorch's StepLR leaves the rate as it is at its first step.
      const double rate = std::pow(0.5, std::max(0, i * GetParam() - 1));
      EXPECT_DOUBLE_EQ(optimizer->param_groups()[0].options().get_lr(), rate);
    }
  });
}

TEST_P(AcceleratorTest, AnOverflowSkipsTheStepEverywhere) {
  on_replicas(GetParam(), {.mixed_precision = "fp16"}, [&](Accelerator& accelerator) {
    auto net = make_model<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto before = model(torch::ones({1, 5})).detach().clone();
    EXPECT_EQ(before.scalar_type(), torch::kFloat32);
    const double factor = accelerator.is_last_process() ? 1e30 : 1;  // one rank overflows
    accelerator.backward(model(torch::ones({1, 5})).sum() * factor * factor);
    optimizer.step();
    EXPECT_TRUE(optimizer.step_was_skipped());
    EXPECT_TRUE(torch::equal(model(torch::ones({1, 5})).detach(), before));
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({1, 5})).sum());
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    EXPECT_FALSE(torch::equal(model(torch::ones({1, 5})).detach(), before));
  });
}

TEST_P(AcceleratorTest, ExchangesTensors) {
  on_replicas(GetParam(), {}, [&](Accelerator& accelerator) {
    const int64_t rank = accelerator.process_index(), n = accelerator.num_processes();
    const auto scalars = accelerator.gather(torch::scalar_tensor(static_cast<double>(rank)));
    EXPECT_EQ(scalars.sizes(), n == 1 ? torch::IntArrayRef() : torch::IntArrayRef({n}));
    const auto own = torch::full({rank + 1, 2}, rank, torch::kInt64);
    const auto all = accelerator.gather(own);
    EXPECT_EQ(all.size(0), n * (n + 1) / 2);
    EXPECT_EQ(all[-1][0].item<int64_t>(), n - 1);
    EXPECT_EQ(accelerator.pad_across_processes(own, 0, -1).size(0), n);
    EXPECT_EQ(
        accelerator.pad_across_processes(own, 0, -1, /*pad_first=*/true)[-1][0].item<int64_t>(),
        rank);
    const auto one = torch::full({2}, static_cast<double>(rank + 1));
    EXPECT_DOUBLE_EQ(accelerator.reduce(one)[0].item<double>(),
                     static_cast<double>(n * (n + 1)) / 2);
    EXPECT_DOUBLE_EQ(accelerator.reduce(one, "mean")[1].item<double>(),
                     static_cast<double>(n + 1) / 2);
    EXPECT_EQ(one[0].item<double>(), static_cast<double>(rank + 1));  // unchanged
    const auto mine = accelerator.split_between_processes(torch::arange(7));
    EXPECT_EQ(mine[0].item<int64_t>(), rank * (7 / n) + std::min(rank, 7 % n));
    EXPECT_TRUE(std::isnan(accelerator.gather_object(std::vector{0.5, std::nan("")})[1]));
    EXPECT_TRUE(torch::equal(accelerator.gather(mine), torch::arange(7)));
    EXPECT_EQ(accelerator.split_between_processes(torch::arange(7), true).size(0), (7 + n - 1) / n);
    if (accelerator.is_last_process()) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, AcceleratorTest, ::testing::Values(1, 2, 3));

/// `steps` updates on rows that depend on the step alone; the last loss.
double train_steps(Accelerator& accelerator, auto& model, auto& optimizer, auto& scheduler,
                   int64_t first, int64_t steps) {
  double last = 0;
  for (int64_t step = first; step < first + steps; ++step) {
    const auto input = torch::full({2, 5}, 0.1 * static_cast<double>(step + 1));
    auto loss = model(input).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    scheduler.step();
    last = loss.template item<double>();
  }
  return last;
}

TEST(AcceleratorStateTest, GoesOnUnderAnotherLayout) {
  const SharedFolder shared;
  const auto folder = shared.path() / "state";
  const auto run = [&](Accelerator& accelerator, int64_t first, int64_t steps, bool load,
                       bool save) {
    auto net = make_model<Net>(load ? 99 : 3);
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::StepLR decay(adamw, 3, 0.5);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, decay);
    if (load) accelerator.load_state(folder);
    const auto last = train_steps(accelerator, model, optimizer, scheduler, first, steps);
    if (save) accelerator.save_state(folder);
    return last;
  };
  const AcceleratorOptions options{.step_scheduler_per_process = false};
  double expected = 0;
  {
    const mesh::DeviceMesh mesh;
    Accelerator alone(options, mesh, settings_of({{"distributed_type", "NO"}}));
    expected = run(alone, 0, 8, false, false);
  }
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    Accelerator sharded(options, mesh, settings_of(kConfigs.at("fsdp_full_shard")));
    run(sharded, 0, 5, false, true);
  });
  on_mesh({.shape = {.dp_shard = 3}}, [&](const mesh::DeviceMesh& mesh) {
    Accelerator sharded(options, mesh, settings_of(kConfigs.at("deepspeed_2")));
    EXPECT_NEAR(run(sharded, 5, 3, true, false), expected, 1e-6);
  });
}

TEST(AcceleratorErrorTest, SaysWhatCannotBePrepared) {
  const mesh::DeviceMesh mesh;
  Accelerator accelerator({}, mesh, settings_of({{"distributed_type", "NO"}}));
  auto net = make_model<Net>(), other = make_model<Net>();
  torch::optim::SGD foreign(other->parameters(), torch::optim::SGDOptions(1));
  EXPECT_THROW(accelerator.prepare(net, foreign), c10::ValueError);
  EXPECT_THROW(accelerator.clip_grad_norm_(net->parameters(), -1), c10::ValueError);
  EXPECT_THROW(Accelerator({.gradient_accumulation_steps = 0}, mesh, {}), c10::ValueError);
  EXPECT_THROW(Accelerator({.mixed_precision = "fp8"}, mesh, {}), UserError);
}

TEST(FindExecutableBatchSize, TakesATenthOffUntilMemorySuffices) {
  std::vector<int64_t> tried;
  const auto size = find_executable_batch_size(
      [&](int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size > 50) throw std::bad_alloc();
        // A real lack of memory, as LibTorch's allocator of the CPU tells it.
        if (batch_size > 45) torch::empty({int64_t{1} << 50});
      },
      64);
  EXPECT_EQ(size, 45);
  EXPECT_EQ(tried, (std::vector<int64_t>{64, 57, 51, 45}));
  EXPECT_THROW(find_executable_batch_size([](int64_t) { throw std::bad_alloc(); }, 4),
               c10::ValueError);
}

}  // namespace
}  // namespace tessera
