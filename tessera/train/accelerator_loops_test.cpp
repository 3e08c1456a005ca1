// What ported loops do with an Accelerator beside a step: saving, resuming, leaving, going wrong.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/nn/layers.h"
#include "tessera/train/accelerator.h"
#include "tessera/train/lr_scheduler.h"
#include "tests/support/accelerator.h"
#include "tests/support/expect.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct LoopNetImpl : torch::nn::Module {
  LoopNetImpl() {
    register_module("first", first), register_module("second", second);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat32)).reshape(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{1, 4}, second{4, 1};
};
TORCH_MODULE(LoopNet);

/// Row i holds i.
class Numbered : public torch::data::Dataset<Numbered, torch::data::TensorExample> {
 public:
  explicit Numbered(int64_t count) : count_(count) {}
  torch::data::TensorExample get(size_t index) override {
    return torch::full({1}, static_cast<float>(index));
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(count_); }

 private:
  int64_t count_;
};

template <typename Sampler = torch::data::samplers::RandomSampler>
auto numbered_loader(int64_t rows, int64_t batch_size) {
  return torch::data::make_data_loader<Sampler>(
      Numbered(rows).map(torch::data::transforms::Stack<torch::data::TensorExample>()),
      torch::data::DataLoaderOptions(static_cast<size_t>(batch_size)));
}

void with_accelerator(int ranks, const AcceleratorOptions& options,
                      const std::function<void(Accelerator&)>& body) {
  on_accelerator({ranks, "MULTI_CPU"}, options, body);
}

/// Says which token it sees.
struct TokenNetImpl : torch::nn::Module {
  TokenNetImpl() {
    register_module("embed", embed), register_module("head", head);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel(), torch::kFloat32)).reshape(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return head(embed(ids), ids, kernels::TokenLoss(1.0 / static_cast<double>(ids.numel())));
  }
  torch::nn::Embedding embed{12, 8};
  nn::LanguageModelHead head{8, 12};
};
TORCH_MODULE(TokenNet);

class LoopsTest : public RankTest {};

std::vector<float> row_numbers(const torch::Tensor& batch) {
  const auto rows = batch.flatten().contiguous();
  return {rows.const_data_ptr<float>(), rows.const_data_ptr<float>() + rows.numel()};
}

// A run that is saved after two steps of a shuffled epoch, and one that goes on from there.
TEST_P(LoopsTest, AShuffledEpochGoesOnWithTheRowsThatWereLeft) {
  const SharedFolder shared;
  for (const bool by_itself : {false, true}) {
    const auto folder = shared.path() / (by_itself ? "by_itself" : "skipped");
    with_accelerator(
        GetParam(), {.use_stateful_dataloader = by_itself}, [&](Accelerator& accelerator) {
          torch::manual_seed(5);
          LoopNet net;
          torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
          auto [model, optimizer, loader] = accelerator.prepare(net, sgd, numbered_loader<>(30, 2));
          std::vector<float> whole, resumed;
          int step = 0;
          for (auto& batch : loader) {
            accelerator.backward(model(batch.data).sum());
            optimizer.step();
            optimizer.zero_grad();
            if (++step > 2) {
              for (const float row : row_numbers(batch.data)) whole.push_back(row);
            }
            if (step == 2) accelerator.save_state(folder);
          }
          const auto next_epoch = torch::rand({1}).item<double>();

          torch::manual_seed(99 + static_cast<uint64_t>(accelerator.process_index()));
          accelerator.free_memory();
          LoopNet other;
          torch::optim::SGD again(other->parameters(), torch::optim::SGDOptions(0.01));
          auto [model_2, optimizer_2, loader_2] =
              accelerator.prepare(other, again, numbered_loader<>(30, 2));
          accelerator.load_state(folder);
          auto left = by_itself ? loader_2 : accelerator.skip_first_batches(loader_2, 2);
          for (auto& batch : left) {
            for (const float row : row_numbers(batch.data)) resumed.push_back(row);
          }
          EXPECT_EQ(resumed, whole);
          EXPECT_EQ(torch::rand({1}).item<double>(), next_epoch);  // and so does the next epoch
        });
  }
}

// The head's weight has a gradient that its forward may not add unscaled.
TEST_P(LoopsTest, AHeadsGradientIsTheMeanOfMicroBatches) {
  for (const int64_t steps : {1, 2, 3}) {
    with_accelerator(GetParam(), {.gradient_accumulation_steps = 2}, [&](Accelerator& accelerator) {
      accelerator.set_gradient_accumulation_steps(steps);
      TokenNet net, plain;
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5)),
          plain_sgd(plain->parameters(), torch::optim::SGDOptions(0.5));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int64_t i = 0; i < 2 * steps; ++i) {
        const auto ids = torch::tensor({i % 12, (5 * i + 1) % 12, (7 * i + 3) % 12});
        const auto here = accelerator.accumulate();
        accelerator.backward(model(ids));
        optimizer.step();
        optimizer.zero_grad();
        (torch::nn::functional::cross_entropy(
             torch::nn::functional::linear(plain->embed(ids), plain->head->weight), ids) /
         static_cast<double>(steps))
            .backward();
        if (i % steps < steps - 1) continue;
        plain_sgd.step();
        plain_sgd.zero_grad();
      }
      const auto trained = accelerator.get_state_dict(model);
      EXPECT_TRUE(torch::allclose(trained["head.weight"], plain->head->weight, 1e-5, 1e-6))
          << steps;
      EXPECT_TRUE(torch::allclose(trained["embed.weight"], plain->embed->weight, 1e-5, 1e-6))
          << steps;
    });
  }
}

TEST_P(LoopsTest, CheckpointsNameThemselvesAndTheOldestGo) {
  const SharedFolder shared;
  const auto folder = shared.path() / "run";
  const AcceleratorOptions options{
      .project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2};
  with_accelerator(GetParam(), options, [&](Accelerator& accelerator) {
    struct Counter {
      int value = 0;
      nlohmann::json state_dict() const { return value; }
      void load_state_dict(const nlohmann::json& state) { value = state; }
    } counter;
    LoopNet net;
    torch::optim::RMSprop rmsprop(net->parameters(), torch::optim::RMSpropOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, rmsprop);
    accelerator.register_for_checkpointing(counter);
    for (; counter.value < 4; ++counter.value) accelerator.save_state();
    accelerator.wait_for_everyone();
    EXPECT_FALSE(fs::exists(folder / "checkpoints/checkpoint_1"));
    EXPECT_TRUE(fs::exists(folder / "checkpoints/checkpoint_2"));
    EXPECT_TRUE(fs::exists(folder / "checkpoints/checkpoint_3"));
    accelerator.load_state();
    EXPECT_EQ(counter.value, 3);
    accelerator.wait_for_everyone();
  });
}

/// A step on data that depends on the step alone.
template <typename Optimizer>
void step_once(Accelerator& accelerator, auto& model, Optimizer& optimizer, int step) {
  const auto loss = [&] {
    optimizer.zero_grad();
    auto value = model(torch::full({2, 1}, 0.1F * static_cast<float>(step + 1))).square().mean();
    accelerator.backward(value);
    return value;
  };
  optimizer.step(loss);
  optimizer.zero_grad();
}

// Two steps, saved, two more: as four in a row.
TEST_P(LoopsTest, EveryOptimizerGoesOnWhereItWasSaved) {
  namespace optim = torch::optim;
  const SharedFolder shared;
  const auto run = [&](const std::string& name, const auto& make) {
    with_accelerator(GetParam(), {}, [&](Accelerator& accelerator) {
      LoopNet whole, saved, resumed;
      const auto steps = [&](LoopNet& net, int first, int last, bool load, bool save) {
        auto own = make(net->parameters());
        auto [model, optimizer] = accelerator.prepare(net, own);
        if (load) accelerator.load_state(shared.path() / name);
        for (int i = first; i < last; ++i) step_once(accelerator, model, optimizer, i);
        if (save) accelerator.save_state(shared.path() / name);
        accelerator.free_memory();
      };
      steps(whole, 0, 4, false, false);
      steps(saved, 0, 2, false, true);
      steps(resumed, 2, 4, true, false);
      expect_close(resumed->first->weight, whole->first->weight);
      EXPECT_FALSE(torch::equal(resumed->first->weight, saved->first->weight));
    });
  };
  run("sgd", [](auto all) { return optim::SGD(all, optim::SGDOptions(0.1).momentum(0.9)); });
  run("rmsprop", [](auto all) {
    return optim::RMSprop(all, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  });
  run("adagrad", [](auto all) { return optim::Adagrad(all, optim::AdagradOptions(0.1)); });
  run("lbfgs", [](auto all) { return optim::LBFGS(all, optim::LBFGSOptions(0.2).max_iter(3)); });
}

TEST_P(LoopsTest, SchedulersOfMetricsGoOn) {
  const SharedFolder shared;
  with_accelerator(
      GetParam(), {.step_scheduler_per_process = false}, [&](Accelerator& accelerator) {
        const auto metric = [](int i) { return i == 1 ? std::nan("") : 1.0 + i % 3; };
        double expected = 0;
        for (const bool load : {false, true}) {
          LoopNet net;
          torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1));
          torch::optim::ReduceLROnPlateauScheduler plateau(
              sgd, torch::optim::ReduceLROnPlateauScheduler::min, /*factor=*/0.5, /*patience=*/1);
          auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, plateau);
          if (load) accelerator.load_state(shared.path() / "state");
          for (int i = load ? 4 : 0; i < 8; ++i) {
            step_once(accelerator, model, optimizer, i);
            scheduler.step(metric(i));
            if (!load && i == 3) accelerator.save_state(shared.path() / "state");
          }
          const double rate = sgd.param_groups()[0].options().get_lr();
          EXPECT_LT(rate, 0.5);  // fell before the save and behind it
          if (load) {
            EXPECT_DOUBLE_EQ(rate, expected);
          } else {
            expected = rate;
            EXPECT_THROW(accelerator.load_state(shared.path() / "state"), UserError);
          }
          accelerator.free_memory();
        }
      });
}

TEST_P(LoopsTest, SchedulersOfTheUsersGoOn) {
  const SharedFolder shared;
  with_accelerator(GetParam(), {}, [&](Accelerator& accelerator) {
    struct Halving {
      torch::optim::Optimizer* optimizer = nullptr;
      void step() {
        auto& options = optimizer->param_groups()[0].options();
        options.set_lr(options.get_lr() / 2);
      }
    };
    double expected = 0;
    for (const bool load : {false, true}) {
      LoopNet net;
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1));
      Halving halving{&sgd};
      lr_scheduler::LRScheduler cosine(sgd, lr_scheduler::CosineAnnealingLR{.T_max = 50});
      auto [model, optimizer, own, scheduler] = accelerator.prepare(net, sgd, halving, cosine);
      if (load) accelerator.load_state(shared.path() / "state");
      for (int i = 0; i < (load ? 2 : 4); ++i) {
        step_once(accelerator, model, optimizer, i);
        own.step();
        scheduler.step();
        if (!load && i == 1) accelerator.save_state(shared.path() / "state");
      }
      if (load) {
        EXPECT_DOUBLE_EQ(scheduler.get_last_lr()[0], expected);
      } else {
        expected = scheduler.get_last_lr()[0];
      }
      accelerator.free_memory();
    }
  });
}

TEST_P(LoopsTest, AModelIsSavedAsTransformersReadsIt) {
  const SharedFolder shared;
  with_accelerator(GetParam(), {}, [&](Accelerator& accelerator) {
    LoopNet net;
    auto model = accelerator.prepare(net);
    accelerator.save_model(model, shared.path() / "one");
    accelerator.save_model(model, shared.path() / "some", /*max_shard_bytes=*/20);
    for (const auto* name : {"one", "some"}) {
      const checkpoint::Safetensors found(shared.path() / name);
      EXPECT_EQ(found.tensors().size(), 4U);
      expect_close(checkpoint::read_tensor(found, "first.weight"), net->first->weight.detach());
    }
    EXPECT_TRUE(fs::exists(shared.path() / "some/model.safetensors.index.json"));
    EXPECT_EQ(accelerator.get_state_dict(model).keys().front(), "first.weight");
    accelerator.wait_for_everyone();
  });
}

TEST_P(LoopsTest, SaysWhatALoopForgot) {
  with_accelerator(GetParam(), {.even_batches = false}, [&](Accelerator& accelerator) {
    LoopNet net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({2, 1})).sum());
    optimizer.step();
    accelerator.backward(model(torch::ones({2, 1})).sum());
    EXPECT_THROW(optimizer.step(), c10::ValueError);
    optimizer.zero_grad();

    // A batch that the other ranks do not have.
    auto loader = accelerator.prepare(
        numbered_loader<torch::data::samplers::SequentialSampler>(2 * GetParam() + 2, 2));
    int batches = 0;
    for (auto& batch : loader) {
      if (++batches == 1 || GetParam() == 1) {
        accelerator.backward(model(batch.data).sum());
        optimizer.step();
        optimizer.zero_grad();
      } else {
        EXPECT_THROW(accelerator.backward(model(batch.data).sum()), c10::ValueError);
      }
    }
    EXPECT_EQ(batches, GetParam() == 1 || accelerator.is_main_process() ? 2 : 1);
  });
}

TEST_P(LoopsTest, ALoopInsideOfItselfIsRefused) {
  with_accelerator(GetParam(), {}, [&](Accelerator& accelerator) {
    auto loader = accelerator.prepare(numbered_loader<>(30, 2));
    for (int epoch = 0; epoch < 2; ++epoch) {  // one that is left by break has ended
      for (auto& batch : loader) {
        EXPECT_EQ(batch.data.numel(), 2);
        EXPECT_THROW(loader.begin(), c10::ValueError);
        break;
      }
    }
  });
}

TEST_P(LoopsTest, AHookSendsGradientsInHalfTheBits) {
  for (const auto hook : {CommHook::none, CommHook::bf16, CommHook::fp16}) {
    with_accelerator(GetParam(), {.comm_hook = hook}, [&](Accelerator& accelerator) {
      LoopNet net, plain;
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      step_once(accelerator, model, optimizer, 3);
      plain(torch::full({2, 1}, 0.4F)).square().mean().backward();
      const auto gradient = plain->first->weight.grad();
      const auto expected = plain->first->weight.detach() - 0.1 * gradient;
      const auto gap = (net->first->weight.detach() - expected).abs().max().item<double>();
      EXPECT_LT(gap, hook == CommHook::bf16 ? 1e-3 : 1e-4);
      EXPECT_TRUE(hook != CommHook::none || gap < 1e-6) << gap;
      EXPECT_TRUE(hook != CommHook::bf16 || gap > 1e-7) << gap;
    });
  }
}

TEST_P(LoopsTest, AProfileNamesTheOperators) {
  const SharedFolder shared;
  with_accelerator(GetParam(), {}, [&](Accelerator& accelerator) {
    auto profile = accelerator.profile({.output_trace_dir = shared.path() / "trace"});
    nn::RMSNorm norm(8, 1e-5);
    norm(torch::ones({8, 8}).mm(torch::ones({8, 8})));
    const auto operators = profile->key_averages();
    for (const auto* name : {"aten::mm", "tessera::rms_norm"}) {  // LibTorch's, and ours
      const auto found = std::ranges::find(operators, name, &ProfiledOperator::name);
      ASSERT_NE(found, operators.end()) << name;
      EXPECT_EQ(found->count, 1);
      EXPECT_GT(found->cpu_time_total, 0);
    }
    EXPECT_TRUE(fs::exists(shared.path() / "trace" /
                           fmt::format("profile_{}.json", accelerator.process_index())));
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, LoopsTest, ::testing::Values(1, 2, 3));

TEST(LoopsErrorTest, RefusesInPrepareWhatCannotBeSaved) {
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    config::accelerate::Settings settings;
    settings.set({.key = "distributed_type", .value = "FSDP", .origin = "test"});
    settings.set({.key = "fsdp_config.fsdp_version", .value = "1", .origin = "test"});
    Accelerator accelerator({}, mesh, settings);
    LoopNet net;
    torch::optim::LBFGS lbfgs(net->parameters());
    EXPECT_THROW(accelerator.prepare(net, lbfgs), c10::ValueError);
  });
}

}  // namespace
}  // namespace tessera
