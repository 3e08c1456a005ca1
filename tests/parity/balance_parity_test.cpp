// What keeps experts evenly used, beside one rank's and beside what transformers recorded: losses, gradients
// of routers and biases in every layout.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/hf_config.h"
#include "tessera/train/balance.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/resume.h"
#include "tests/parity/layout.h"
#include "tests/support/train_from.h"

namespace tessera::parity {
namespace {

constexpr const char* kMicro = "tests/fixtures/mixtral_micro";

config::RunConfig job_of(const config::MoeSection& moe, const std::string& model = kMicro) {
  auto job = recorded_job(32, 12);
  job.model.path = model;
  job.model.init = models::Init::pretrained;
  job.optimizer.max_grad_norm = 0;
  job.moe = moe;
  return job;
}

double figure(const train::StepResult& result, const std::string& tag) {
  const auto found = std::ranges::find(result.figures, tag, &report::Figure::tag);
  return found == result.figures.end() ? NAN : found->value;
}

/// The largest difference of what this rank holds of routers, and of their biases, from the same in a run on
/// one rank, against the largest number there.
void expect_same_routers(train::Run& run, train::Run& one, const std::string& what) {
  std::map<std::string, torch::Tensor> whole;
  for (auto& part : train::held_state(one)) whole[part.extent.name] = part.values;
  for (const auto& part : train::held_state(run)) {
    const auto& name = part.extent.name;
    if (checkpoint::is_optimizer_state(name) || name.find("gate") == std::string::npos) continue;
    part.extent.stripe.for_each_stretch(
        part.extent.begin, part.extent.length, [&](int64_t position, int64_t k, int64_t n) {
          const auto difference = part.values.narrow(0, k - part.extent.begin, n) -
                                  whole.at(name).narrow(0, position, n);
          const double size = std::max(1e-3, whole.at(name).abs().max().item<double>());
          EXPECT_LT(difference.abs().max().item<double>(), 2e-5 * size) << what << " " << name;
        });
  }
}

/// SGD makes weights say what gradients were: of one step first, then of a few.
void expect_like_one_rank(config::RunConfig job, const Layout& layout) {
  job.optimizer.type = optim::OptimizerType::sgd;
  job.optimizer.learning_rate = 0.05;
  on_mesh({.shape = layout.shape}, [&](const mesh::DeviceMesh& mesh) {
    auto run = train::assemble(with_layout(job, layout), mesh);
    auto one = train::assemble(job, mesh::DeviceMesh());
    for (int64_t step = 0; step < 3; ++step) {
      const auto found = train::train_step(run, step), expected = train::train_step(one, step);
      EXPECT_NEAR(found.loss / expected.loss, 1, 2e-5) << step;
      EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 2e-5) << step;
      for (const auto* tag : {"moe/aux_loss", "moe/z_loss", "moe/entropy"}) {
        EXPECT_NEAR(figure(found, tag) / figure(expected, tag), 1, 2e-5) << tag << " " << step;
      }
      ASSERT_EQ(found.experts.size(), expected.experts.size());
      for (size_t i = 0; i < found.experts.size(); ++i) {
        EXPECT_EQ(found.experts[i].tokens, expected.experts[i].tokens) << step;
      }
      expect_same_routers(run, one, fmt::format("step {}", step));
    }
  });
}

const config::MoeSection kAll[] = {
    {.aux_loss = train::AuxLoss::sequence, .aux_coefficient = 0.5, .z_coefficient = 0.05},
    {.aux_loss = train::AuxLoss::batch, .aux_coefficient = 0.5, .selection_bias_rate = 0.01},
    {.aux_loss = train::AuxLoss::transformers, .aux_coefficient = 0.5, .z_coefficient = 0.02}};

class BalanceParityTest : public ::testing::TestWithParam<Layout> {};

TEST_P(BalanceParityTest, EqualsOneRank) {
  for (const auto& moe : kAll) {
    SCOPED_TRACE(text_of(moe.aux_loss));
    expect_like_one_rank(job_of(moe), GetParam());
  }
}

/// Layouts of all kinds; by ep, with the counts of experts that other ranks have.
std::vector<Layout> layouts() {
  using L = Layout;
  const mesh::MeshShape one, copies{.dp_replicate = 2}, shards{.dp_shard = 2}, tp{.tp = 2},
      pp{.pp = 2};
  return {L{one, "replicate", "none", 1, 4},
          L{one, "replicate", "full", 1, 3},
          L{one, "replicate", "selective"},
          L{copies, "replicate"},
          L{{.dp_shard = 3}},
          L{{.dp_shard = 4}, "shard_gradients", "none", 1, 1},
          L{shards, "full_shard", "full", 1, 2},
          L{tp, "replicate"},
          L{tp, "replicate", "selective", 1, 6},
          L{pp, "replicate", "none", 1, 4},
          L{pp, "replicate", "none", 1, 12},
          L{{.dp_shard = 2, .tp = 2}, "full_shard", "full"},
          L{{.pp = 2, .dp_replicate = 2}, "replicate", "none", 1, 3},
          L{{.dp_shard = 2, .ep = 2}},
          L{{.dp_shard = 4, .ep = 4}, "shard_gradients", "selective", 1, 1},
          L{{.dp_replicate = 2, .ep = 2}, "replicate", "full", 1, 3},
          L{{.dp_shard = 2, .ep = 2, .tp = 2}, "full_shard", "none", 1, 2},
          L{{.pp = 2, .dp_shard = 2, .ep = 2}, "full_shard", "full", 1, 2, "ZB-H1"}};
}

INSTANTIATE_TEST_SUITE_P(All, BalanceParityTest, ::testing::ValuesIn(layouts()));

/// Ten steps of transformers' Mixtral on the fixture's rows, whose loss holds 0.02 times the balancing loss.
class MixtralStepsTest : public RankTest {};

TEST_P(MixtralStepsTest, EqualTransformers) {
  on_mesh({.shape = {.dp_replicate = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    const auto recorded = read_fixture("mixtral_micro/parity.json");
    constexpr double kCoefficient = 0.02;
    auto job = job_of({.aux_loss = train::AuxLoss::transformers, .aux_coefficient = kCoefficient});
    job.train.global_batch = 4;
    job.optimizer.max_grad_norm = 1;
    auto run = train::assemble(job, mesh);
    const auto& losses = recorded["train"]["loss"];
    ASSERT_EQ(losses.size(), 10u);
    for (size_t step = 0; step < losses.size(); ++step) {
      const auto number = static_cast<int64_t>(step);
      auto batches = train::micro_batches(run, run.train_loader, number);
      for (auto& batch : batches) {  // transformers shifts labels itself
        batch.targets.select(1, -1).fill_(data::kIgnoredTarget);
        batch.num_tokens = batch.inputs.size(0) * 31;
      }
      const auto result = train::train_step(run, number, batches);
      const double aux = figure(result, "moe/aux_loss");
      if (step == 0) {
        EXPECT_NEAR(aux / recorded["aux_loss_first_batch"].get<double>(), 1, 1e-6);
      }
      EXPECT_NEAR((result.loss + kCoefficient * aux) / losses[step].get<double>(), 1, 2e-5)
          << "step " << step + 1;
      EXPECT_NEAR(result.grad_norm / recorded["train"]["grad_norm"][step].get<double>(), 1, 2e-4)
          << "step " << step + 1;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, MixtralStepsTest, ::testing::Values(1, 2, 4));

/// E sum_i f_i P_i, f_i of a position's K choices.
torch::Tensor switch_loss(const torch::Tensor& scores, int64_t top_k) {
  const auto chosen = std::get<1>(scores.topk(top_k, 1));
  const auto num_experts = scores.size(1);
  const auto of_each = at::one_hot(chosen, num_experts).to(torch::kFloat32).mean(0);  // [K, E]
  return static_cast<double>(num_experts) * (of_each * scores.mean(0).unsqueeze(0)).sum();
}

/// What is attached has the gradients that autograd finds of the same sum written out.
TEST(Balance, HasTheGradientsOfTheLossWrittenOut) {
  const checkpoint::SafetensorsFile file(std::string(kMicro) + "/expected.safetensors");
  const auto ids = checkpoint::read_tensor(file, "input_ids");
  const auto built = [] {
    auto model =
        models::make_language_model(models::read_model_shape(std::string(kMicro) + "/config.json"));
    checkpoint::load_pretrained(*model, kMicro);
    return model;
  };
  constexpr double kAux = 0.7, kZ = 0.3;
  const mesh::DeviceMesh mesh;
  for (const auto kind :
       {train::AuxLoss::sequence, train::AuxLoss::batch, train::AuxLoss::transformers}) {
    const auto model = built(), plain = built();
    {
      train::Balance balance(train::routers_of(*model), *model,
                             {.aux_loss = kind, .aux_coefficient = kAux, .z_coefficient = kZ},
                             mesh.all_of_training(), mesh.axis("tp"), torch::kCPU);
      balance.begin_step({.positions = 128, .rows = 4});
      const auto loss = model->loss(ids, ids, 0.01);
      balance.know_counts();
      loss.backward();
    }
    std::vector<torch::Tensor> logits;
    for (const auto& layer : train::routers_of(*plain)) {
      layer.router->balance = [&](const nn::RouterCall& call, const torch::Tensor& weights) {
        logits.push_back(call.logits);
        return weights;
      };
    }
    auto total = plain->loss(ids, ids, 0.01);
    for (const auto& of_layer : logits) {
      total = total + kZ * of_layer.logsumexp(1).square().mean();
      const auto scores = of_layer.softmax(1);
      if (kind == train::AuxLoss::batch) total = total + kAux / 2 * switch_loss(scores, 2);
      if (kind != train::AuxLoss::sequence) continue;
      for (const auto& row : scores.view({4, 32, 4}).unbind()) {
        total = total + kAux / 2 / 4 * switch_loss(row, 2);
      }
    }
    if (kind == train::AuxLoss::transformers) {
      total = total + kAux * switch_loss(torch::cat(logits).softmax(1), 2);
    }
    total.backward();
    for (const auto& item : plain->named_parameters()) {
      const auto& want = item.value().grad();
      const auto& got = model->named_parameters()[item.key()].grad();
      EXPECT_LT((got - want).abs().max().item<double>(), 1e-5 * want.abs().max().item<double>())
          << text_of(kind) << " " << item.key();
    }
  }
}

/// Mean over the last 50 of 300 steps of the mean over layers of MaxVio.
double violation_after_300_steps(const config::MoeSection& moe) {
  auto job = job_of(moe);
  job.model.init = models::Init::random;
  job.model.init_std = 0.1;
  job.data.shuffle = true;
  job.train.global_batch = 32;
  job.optimizer.learning_rate = 3e-3;
  job.optimizer.max_grad_norm = 1;
  double sum = 0;
  auto run = train::assemble(job, mesh::DeviceMesh());
  for (int64_t step = 0; step < 300; ++step) {
    const auto result = train::train_step(run, step);
    if (step < 250) continue;
    for (const auto& load : result.experts) {
      sum += load.max_violation() / static_cast<double>(50 * result.experts.size());
    }
  }
  return sum;
}

TEST(Balance, KeepsExpertsEvenlyUsed) {
  const double alone = violation_after_300_steps({});
  const double aux =
      violation_after_300_steps({.aux_loss = train::AuxLoss::batch, .aux_coefficient = 0.01});
  const double biased = violation_after_300_steps({.selection_bias_rate = 0.001});
  RecordProperty("alone", std::to_string(alone));
  std::cout << "MaxVio: alone " << alone << ", aux " << aux << ", bias " << biased << "\n";
  EXPECT_GT(alone, 0.5);
  EXPECT_LT(biased, 0.2);
  EXPECT_LT(aux, alone);
  EXPECT_GT(aux, biased);
}

/// Steps before and after a save are those of a run without one, biases and all.
TEST(Balance, BiasesAreResumedExactly) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / ("balance_" + std::to_string(::getpid()));
  auto job = job_of({.selection_bias_rate = 0.01});
  job.train.steps = 8;
  job.train.run_dir = folder;
  on_mesh({.shape = {.dp_replicate = 1}}, [&](const mesh::DeviceMesh& mesh) {
    auto whole = train::assemble(job, mesh);
    train_from(whole, {}, 8);
    auto changed = job;
    changed.train.steps = 4;
    auto first = train::assemble(changed, mesh);
    train::Checkpointing half(first, {});
    train_from(first, {}, 4, &half);
    changed = job, changed.checkpoint.resume = "auto";
    auto second = train::assemble(changed, mesh);
    const auto resumed = train::resume(second);
    EXPECT_EQ(resumed.counts.step, 4);
    train_from(second, resumed.counts, 8);
    for (size_t i = 0; i < whole.balance->all().size(); ++i) {
      const auto& bias = whole.balance->all()[i].router->selection_bias;
      EXPECT_GT(bias.abs().max().item<float>(), 0);
      EXPECT_TRUE(torch::equal(bias, second.balance->all()[i].router->selection_bias)) << i;
    }
    // They stay as they are where their rate is 0 from here on.
    changed = job, changed.checkpoint.resume = "auto", changed.moe = {};
    auto still = train::assemble(changed, mesh);
    train_from(still, train::resume(still).counts, 6);
    for (size_t i = 0; i < still.balance->all().size(); ++i) {
      const auto& bias = still.balance->all()[i].router->selection_bias;
      EXPECT_TRUE(torch::equal(bias, first.balance->all()[i].router->selection_bias)) << i;
    }
    // What is exported has them, and is read with them.
    checkpoint::convert({.from = {.source = folder / "checkpoints/step_00000004"},
                         .to = checkpoint::Target::huggingface,
                         .destination = folder / "theirs"});
    changed = job, changed.model.path = (folder / "theirs").string(), changed.moe = {};
    const auto read = train::assemble(changed, mesh);
    const auto& saved = first.balance->all();
    for (size_t i = 0; i < saved.size(); ++i) {
      EXPECT_TRUE(torch::equal(saved[i].router->selection_bias,
                               read.balance->all()[i].router->selection_bias))
          << i;
    }
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::parity
