// Models whose linear layers have 4 or 8 bits: as those with the dequantised weights, on any ranks.
#include <gtest/gtest.h>

#include <map>

#include "tessera/base/error.h"
#include "tessera/kernels/quantised.h"
#include "tessera/models/spec.h"
#include "tessera/nn/quantised_weight.h"
#include "tessera/predict/communication.h"
#include "tessera/train/memory_and_traffic.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

constexpr int64_t kSteps = 4;

/// What is not quantised (embedding, norms, head) is trained.
config::RunConfig quantised_job(WeightFormat format) {
  auto job = recorded_job(/*seq_len=*/32, /*global_batch=*/6);
  job.model.preset = "micro";
  job.model.dim = 256, job.model.ffn_dim = 384;
  job.model.init_std = 0.1;
  job.model.weights = format;
  return job;
}

/// Losses and gradient norms of a few steps.
std::vector<double> trained(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  auto run = train::assemble(job, mesh);
  std::vector<double> numbers;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto result = train::train_step(run, step);
    numbers.push_back(result.loss);
    numbers.push_back(result.grad_norm);
  }
  return numbers;
}

TEST(QuantisedParity, TheModelIsThatOfTheDequantisedWeights) {
  for (const auto format :
       {WeightFormat::nf4, WeightFormat::nf4_double, WeightFormat::fp4, WeightFormat::int8}) {
    for (const char* preset : {"micro", "gpt2"}) {
      SCOPED_TRACE(fmt::format("{} {}", text_of(format), preset));
      auto shape = models::model_preset(preset);
      shape.vocab_size = 256, shape.dim = 128, shape.ffn_dim = 192, shape.num_layers = 2;
      shape.num_heads = 4, shape.num_kv_heads = std::string(preset) == "gpt2" ? 4 : 2;
      shape.head_dim = 32;
      const auto plain = models::make_language_model(shape);
      const auto model = models::make_language_model(shape);
      models::initialise(*plain, 1, 0.1);
      models::initialise(*model, 1, 0.1);
      const auto layers =
          nn::quantise_linear_layers(*model, model->layout().layers, {.format = format});
      auto weights = plain->named_parameters();
      for (const auto& layer : layers) {
        const torch::NoGradGuard no_grad;
        auto& weight = weights[layer.path + ".weight"];
        const bool turned = layer.layout == nn::WeightLayout::in_out;
        const auto codes = kernels::quantise(turned ? weight.t() : weight, format);
        const auto values = kernels::dequantise(codes, torch::kFloat);
        weight.copy_(turned ? values.t() : values);
      }
      EXPECT_GE(layers.size(), 8);
      const auto ids = torch::randint(256, {2, 16}, torch::kLong);
      const auto loss = model->loss(ids, ids, 1.0 / 32), expected = plain->loss(ids, ids, 1.0 / 32);
      EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, 1e-6);
      loss.backward();
      expected.backward();
      for (const auto& item : model->named_parameters()) {
        if (!item.value().requires_grad()) continue;
        const auto a = item.value().grad(), b = weights[item.key()].grad();
        const double scale = b.abs().max().item<double>();
        EXPECT_LE((a - b).abs().max().item<double>(), 2e-5 * scale) << item.key();
      }
    }
  }
}

struct Layout {
  mesh::MeshShape shape;
  parallel::Placement placement;
};

std::map<std::string, config::RunConfig> jobs() {
  std::map<std::string, config::RunConfig> jobs;
  for (const auto format : {WeightFormat::nf4, WeightFormat::nf4_double, WeightFormat::int8}) {
    auto job = quantised_job(format);
    jobs[std::string(text_of(format))] = job;
    job.adapter.targets = {"all-linear"};
    job.adapter.type = models::AdapterType::dora;  // norms of dequantised rows
    jobs[fmt::format("dora_{}", text_of(format))] = job;
  }
  return jobs;
}

/// Runs the jobs in each of the layouts, of which the first is one rank, as which they all train.
void expect_what_one_rank_has(const std::vector<Layout>& layouts,
                              const std::map<std::string, config::RunConfig>& jobs) {
  const SharedFolder folder;
  for (const auto& [shape, placement] : layouts) {
    on_mesh({.shape = shape}, [&, &shape = shape,
                               &placement = placement](const mesh::DeviceMesh& mesh) {
      for (auto [name, job] : jobs) {
        SCOPED_TRACE(name);
        if (shape.ep > 1) job.moe.overlap_degree = 2;
        const auto numbers = trained(over(job, shape, placement), mesh);
        const auto alone = folder.path() / name;
        if (shape.num_ranks() == 1) write_file(alone, nlohmann::json(numbers).dump());
        const auto expected = nlohmann::json::parse(read_file(alone)).get<std::vector<double>>();
        for (size_t i = 0; i < numbers.size(); ++i) {
          EXPECT_NEAR(numbers[i] / expected[i], 1, i % 2 == 0 ? 1e-5 : 2e-4) << i;
        }
        mesh.world().barrier();
      }
    });
  }
}

TEST(QuantisedParity, EveryDivisionGivesWhatOneRankHas) {
  using parallel::Placement;
  expect_what_one_rank_has({{{}, Placement::replicate},
                            {{.dp_replicate = 2}, Placement::replicate},
                            {{.dp_shard = 2}, Placement::full_shard},
                            {{.dp_shard = 3}, Placement::full_shard},
                            {{.dp_shard = 3}, Placement::shard_gradients},
                            {{.tp = 2}, Placement::replicate},
                            {{.dp_shard = 2, .tp = 2}, Placement::full_shard},
                            {{.pp = 2}, Placement::replicate}},
                           jobs());
}

/// Experts of 4 and 8 bits, with adapters in them: the same wherever they are.
TEST(QuantisedParity, ExpertsAreWhereverTheyAreThoseOfOneRank) {
  std::map<std::string, config::RunConfig> jobs;
  for (const auto format : {WeightFormat::nf4_double, WeightFormat::int8}) {
    for (const auto type : {models::AdapterType::lora, models::AdapterType::dora}) {
      auto job = recorded_job(/*seq_len=*/32, /*global_batch=*/8);
      job.model.path = "tests/fixtures/experts_small";
      job.model.weights = format;
      job.adapter.type = type;
      job.adapter.targets = {"all-linear"};
      jobs[fmt::format("{} {}", text_of(format), text_of(type))] = job;
    }
  }
  using parallel::Placement;
  expect_what_one_rank_has({{{}, Placement::replicate},
                            {{.dp_shard = 2, .ep = 2}, Placement::full_shard},
                            {{.dp_shard = 4, .ep = 2}, Placement::shard_gradients},
                            {{.dp_replicate = 2, .ep = 2}, Placement::replicate},
                            {{.dp_shard = 3}, Placement::full_shard},
                            {{.ep = 2, .tp = 2, .etp = 1}, Placement::replicate},
                            {{.dp_shard = 2, .ep = 4, .tp = 2, .etp = 1}, Placement::full_shard},
                            {{.pp = 2, .dp_shard = 2, .ep = 2}, Placement::full_shard}},
                           jobs);
}

/// The bytes that counters say were gathered in a step, of the matrices of blocks: those in 16 bits
/// less those that are less in 4.
TEST(QuantisedParity, AStepGathersFourBitsAWeight) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    int64_t rounds = 0;
    const auto gathered = [&](WeightFormat format) {
      auto job = over(quantised_job(format), {.dp_shard = 2}, parallel::Placement::full_shard);
      job.adapter.type = models::AdapterType::lora;
      job.precision.compute = FloatType::bf16;
      auto run = train::assemble(job, mesh);
      train::train_step(run, 0);
      const auto before = train::traffic_so_far(run).dp().all_gather;
      train::train_step(run, 1);
      const auto bytes = train::traffic_so_far(run).dp().all_gather - before;
      // Codes of several matrices are laid out with gaps of some bytes.
      EXPECT_NEAR(bytes, predict::communication(job, run.rank_plan()).dp().all_gather,
                  1e-3 * bytes);
      rounds = 2 * run.plan.shape.num_layers;  // the last unit is the head's
      return bytes;
    };
    int64_t matrices = 0;
    const auto shape = config::resolve_model_shape(quantised_job(WeightFormat::nf4).model);
    for (const auto& parameter : models::spec_of(shape.family).parameters(shape).block) {
      if (parameter.shape.size() == 2) matrices += parameter.num_elements() * shape.num_layers;
    }
    const double of_16_bits = gathered(WeightFormat::as_stored);
    const double of_4_bits = gathered(WeightFormat::nf4_double);
    const double base =
        2.0 * static_cast<double>(matrices * rounds) / static_cast<double>(shape.num_layers);
    EXPECT_NEAR(1 - (of_16_bits - of_4_bits) / base, 4.127 / 16, 0.0005);
  });
}

/// Codes are gathered as the bytes that they are.
TEST(QuantisedParity, FullShardGathersFourBitsAWeight) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    const auto gathered = [&](WeightFormat format) {
      auto job = over(quantised_job(format), {.dp_shard = 2}, parallel::Placement::full_shard);
      if (format == WeightFormat::as_stored) job.precision.compute = FloatType::bf16;
      auto run = train::assemble(job, mesh);
      int64_t bytes = 0;
      for (const auto& unit : run.parallel.units()) {
        if (!unit.name().starts_with("model.layers.")) continue;
        for (const auto& buffer : unit.buffers())
          bytes += buffer.plan().elements * buffer.plan().whole_bytes;
      }
      return bytes;
    };
    const auto bytes_of_16_bits = gathered(WeightFormat::as_stored);
    const auto bytes_of_4_bits = gathered(WeightFormat::nf4_double);
    EXPECT_NEAR(static_cast<double>(bytes_of_4_bits) / static_cast<double>(bytes_of_16_bits),
                4.127 / 16, 0.01);
  });
}

TEST(QuantisedParity, BlocksThatTensorParallelismWouldCutAreRefused) {
  on_mesh({.shape = {.tp = 2}}, [](const mesh::DeviceMesh& mesh) {
    auto job = over(quantised_job(WeightFormat::nf4), {.tp = 2}, parallel::Placement::replicate);
    job.model.ffn_dim = 64 * 3;
    try {
      train::assemble(job, mesh);
      ADD_FAILURE() << "expected a UserError";
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()),
                "model.layers.0.mlp.down_proj: expected 2 ranks of tp to divide its 192 input "
                "features into multiples of 64 (blocks of its quantised weight); set tp lower, or "
                "keep it in int8");
    }
  });
}

}  // namespace
}  // namespace tessera::parity
