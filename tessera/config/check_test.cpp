#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/config/fields.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RunConfig good() {
  RunConfig config;
  config.data.train = {"corpus/"};
  return config;
}

std::string error_of(const RunConfig& config, const Origins& origins = {}) {
  try {
    check(config, origins);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckTest, DefaultsWithDataAreGood) {
  EXPECT_EQ(error_of(good()), "no error");
  EXPECT_EQ(error_of(RunConfig{}),
            "data.train: expected at least one file or folder, got none; set data.train, or "
            "--data.train=PATH");
}

TEST(CheckTest, OnlyGpt2Drops) {
  auto config = good();
  config.model.dropout = 0.1;
  EXPECT_EQ(error_of(config, {{"model.dropout", "job.yaml:3"}}),
            "job.yaml:3: model.dropout: a llama drops nothing, got 0.1; remove it, or take a gpt2");
  config.model.preset = "gpt2";
  EXPECT_EQ(error_of(config), "no error");
  EXPECT_EQ(resolve_model_shape(config.model).dropout, 0.1);
}

TEST(CheckTest, ExpertsAreSharedOutOverDataRanks) {
  auto config = good();
  config.model.path = "tests/fixtures/experts_micro";
  config.parallel.num_ranks = 8;
  config.parallel.ep = 2;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.ep = 3;
  EXPECT_EQ(
      error_of(config, {{"parallel.ep", "job.yaml:3"}}),
      "job.yaml:3: parallel.ep: expected a divisor of the 8 ranks of dp_replicate, got 3; set "
      "one of 1, 2, 4, 8");
  config.parallel.ep = 8, config.parallel.tp = 2;
  EXPECT_EQ(
      error_of(config),
      "parallel.ep: expected a divisor of the 4 ranks of dp_replicate, got 8; set one of 1, 2, "
      "4");
  config.parallel.etp = 1;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.etp = 3;
  EXPECT_EQ(error_of(config),
            "parallel.etp: expected a divisor of the 2 ranks of tp, got 3; set one of 1, 2");
  config.parallel.etp = 1, config.parallel.ep = 16;
  EXPECT_EQ(
      error_of(config),
      "parallel.ep: expected a divisor of the 4 ranks of dp_replicate times a divisor of the 2 "
      "of tp that etp 1 leaves, got 16; set one of 1, 2, 4, 8");
  config.parallel.etp.reset();
  config.parallel.ep = 4, config.parallel.tp = 1;
  config.parallel.placement = parallel::Placement::full_shard;
  config.parallel.reshard_after_forward = 2;
  EXPECT_THAT(error_of(config), StartsWith("parallel.reshard_after_forward: expected true or false "
                                           "beside parallel.ep 4"));
  config.parallel.reshard_after_forward = true;
  config.precision.matmul = Matmul::fp8_delayed;
  EXPECT_THAT(error_of(config), StartsWith("precision.matmul: fp8_delayed"));
  config.precision.matmul = Matmul::as_compute;
  config.parallel.sync_module_states = true, config.model.init = models::Init::pretrained;
  EXPECT_THAT(error_of(config), StartsWith("parallel.sync_module_states: rank 0"));
  config = good();
  config.parallel.num_ranks = 2, config.parallel.ep = 2;
  EXPECT_EQ(error_of(config), "parallel.ep: expected 1 for a model without experts, got 2");
  config.parallel.ep = 1, config.parallel.tp = 2, config.parallel.etp = 1;
  EXPECT_EQ(error_of(config), "parallel.etp: expected null for a model without experts, got 1");
}

TEST(CheckTest, ErrorsSayWhereTheValueWasWritten) {
  auto config = good();
  config.parallel.num_ranks = 3;
  const std::string line =
      "train.global_batch: 8 sequences cannot be divided over 3 ranks; set a multiple of 3";
  EXPECT_EQ(error_of(config), line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "default"}}), line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "job.yaml:7"}}), "job.yaml:7: " + line);
  EXPECT_EQ(error_of(config, {{"train.global_batch", "command line"}}), "--" + line);
}

TEST(CheckTest, TensorParallelism) {
  auto config = good();
  config.model.preset = "micro";
  config.data.seq_len = 64;
  config.parallel.num_ranks = 8;
  config.parallel.tp = 2;
  EXPECT_EQ(error_of(config), "no error");
  const auto sizes = std::get<mesh::MeshShape>(mesh_shape(config.parallel, 8));
  EXPECT_EQ(sizes.dp_replicate, 4);
  config.train.global_batch = 4;  // shared by the four data ranks
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.tp = -1;
  EXPECT_EQ(std::get<mesh::MeshShape>(mesh_shape(config.parallel, 8)).tp, 8);
  config.parallel.tp = 3;
  EXPECT_EQ(error_of(config), "parallel.tp: the mesh has 6 ranks but the run has 8; set 2 or -1");
  config.parallel.placement = parallel::Placement::full_shard;
  config.parallel.dp_shard = 3, config.parallel.dp_replicate = 1;
  EXPECT_EQ(error_of(config),
            "parallel.tp: dp_replicate 1 x dp_shard 3 x tp 3 make 9 ranks but the run has 8; "
            "start 9, or change a size");
  config.parallel.dp_shard = -1, config.parallel.tp = 8;
  EXPECT_EQ(error_of(config),
            "parallel.tp: 4 heads (2 of keys) cannot be divided over 8 ranks; set one of 1, 2, 4");
  config.parallel.tp = 4, config.data.seq_len = 63;
  EXPECT_EQ(error_of(config),
            "data.seq_len: expected a multiple of parallel.tp 4, got 63; set 60, or "
            "parallel.sequence_parallel to false");
  config.parallel.sequence_parallel = false;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.tp = 1, config.train.global_batch = 8;
  EXPECT_EQ(error_of(config),
            "parallel.sequence_parallel: has no effect here: it needs parallel.tp above 1; remove "
            "one of them");
}

TEST(CheckTest, AnAdapterIsBelowAnotherOnce) {
  auto config = good();
  config.adapter.type = models::AdapterType::lora;
  config.adapter.base = {"a", "b"};
  EXPECT_EQ(error_of(config), "no error");
  config.adapter.base = {"a", "b", "./a/"};
  EXPECT_EQ(error_of(config),
            "adapter.base: expected each adapter once, got './a/' twice; remove one");
}

TEST(CheckTest, RanksShareTheBatch) {
  auto config = good();
  config.train.global_batch = 12;
  config.train.micro_batch = 3;
  for (const int64_t ranks : {-1, 1, 2, 4}) {
    config.parallel.num_ranks = ranks;
    EXPECT_EQ(error_of(config), "no error") << ranks;
  }
  config.parallel.num_ranks = 3;
  EXPECT_EQ(error_of(config),
            "train.micro_batch: expected 0 or a divisor of 4, each rank's share of "
            "train.global_batch 12, got 3");
  config.train.micro_batch = 5;
  config.parallel.num_ranks = 4;
  EXPECT_EQ(error_of(config),
            "train.micro_batch: expected 0 or a divisor of 3, each rank's share of "
            "train.global_batch 12, got 5");
}

TEST(CheckTest, TheMeshCoversTheRanks) {
  auto config = good();
  config.parallel.num_ranks = 4;
  config.parallel.dp_replicate = 4;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.dp_replicate = 2;
  EXPECT_EQ(error_of(config),
            "parallel.dp_replicate: the mesh has 2 ranks but the run has 4; set 4 or -1");
  config.parallel.dp_shard = 2;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: 2 ranks cannot share a model that is replicated; remove it, or set "
            "parallel.placement to full_shard");
  config.parallel.placement = parallel::Placement::full_shard;
  EXPECT_EQ(error_of(config), "no error");
  config.parallel.dp_shard = 3;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 6 ranks but the run has 4; set 2 or -1");
  config.parallel.dp_replicate = -1;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 3 ranks but the run has 4; set 4 or -1");
  config.parallel.dp_shard = 5;
  EXPECT_EQ(error_of(config),
            "parallel.dp_shard: the mesh has 5 ranks but the run has 4; set 4 or -1");
}

TEST(CheckTest, ReshardingDividesTheRanksThatShare) {
  auto config = good();
  config.parallel.num_ranks = 4;
  config.parallel.placement = parallel::Placement::full_shard;
  for (const parallel::ReshardAfterForward right :
       {parallel::ReshardAfterForward(true), parallel::ReshardAfterForward(false),
        parallel::ReshardAfterForward(2), parallel::ReshardAfterForward(4)}) {
    config.parallel.reshard_after_forward = right;
    EXPECT_EQ(error_of(config), "no error");
  }
  config.parallel.reshard_after_forward = 3;
  EXPECT_EQ(error_of(config),
            "parallel.reshard_after_forward: expected true, false or a divisor of the 4 ranks of "
            "dp_shard, got 3");
}

TEST(CheckTest, Precisions) {
  auto config = good();
  config.precision.parameters = FloatType::bf16;
  EXPECT_THAT(error_of(config), ::testing::StartsWith("precision.parameters: bf16 parameters"));
  config.precision.compute = FloatType::bf16;
  EXPECT_EQ(error_of(config), "no error");
  config.precision.reduce = FloatType::fp16;
  EXPECT_EQ(error_of(config),
            "precision.reduce: expected fp32, or precision.compute bf16, got fp16");
  config.precision = {.compute = FloatType::bf16, .autocast = true, .reduce = FloatType::bf16};
  EXPECT_THAT(error_of(config), ::testing::StartsWith("precision.reduce: under autocast"));
}

TEST(CheckTest, PhasesFitIntoTheRun) {
  auto config = good();
  config.schedule.warmup_steps = 100;
  EXPECT_EQ(error_of(config), "no error");
  config.schedule.warmup_steps = 101;
  EXPECT_EQ(error_of(config), "schedule.warmup_steps: expected at most train.steps 100, got 101");
  config.schedule = {
      .type = optim::LearningRateSchedule::wsd, .warmup_steps = 10, .decay_steps = 90};
  EXPECT_EQ(error_of(config), "no error");
  config.schedule.decay_steps = 91;
  EXPECT_EQ(
      error_of(config),
      "schedule.decay_steps: expected at most 90 (train.steps 100 less 10 of warm-up), got 91");
}

TEST(CheckTest, EpochsTakeThePlaceOfSteps) {
  auto config = good();
  config.train.epochs = 0.5;
  EXPECT_EQ(error_of(config), "no error");
  config.schedule.warmup_steps = 1000;  // the ranks know how many steps there are
  EXPECT_EQ(error_of(config), "no error");
  config.train.steps = 7;
  EXPECT_EQ(error_of(config, {{"train.steps", "job.yaml:9"}}),
            "job.yaml:9: train.steps: has no effect here: it needs train.epochs 0; remove one of "
            "them");
  // The command line's epochs are stronger than the file's steps.
  EXPECT_EQ(error_of(config, {{"train.steps", "job.yaml:9"}, {"train.epochs", kCommandLine}}),
            "no error");
}

TEST(CheckTest, StepsOfEpochsSeeAllRows) {
  TrainSection train{.steps = 5, .global_batch = 8};
  EXPECT_EQ(num_steps(train, 100, 0, 0), 5);
  train.epochs = 1;
  EXPECT_EQ(num_steps(train, 96, 0, 0), 12);
  EXPECT_EQ(num_steps(train, 97, 0, 0), 13);
  EXPECT_EQ(num_steps(train, 97, 4, 32), 13) << "the same after a resume";
  EXPECT_EQ(num_steps(train, 97, 4, 64), 9) << "after four steps of batches of 16";
  EXPECT_EQ(num_steps(train, 97, 40, 400), 40) << "all is seen";
  train.epochs = 0.5;
  EXPECT_EQ(num_steps(train, 97, 0, 0), 7);
  train.epochs = 2.5;
  EXPECT_EQ(num_steps(train, 100, 0, 0), 32);
}

TEST(CheckTest, PhasesFitIntoTheStepsOfEpochs) {
  const ScheduleSection schedule{.warmup_steps = 12};
  EXPECT_FALSE(schedule_problem(schedule, 12, "12 steps"));
  const auto problem = schedule_problem(schedule, 11, "11, the steps of train.epochs 1").value();
  EXPECT_EQ(problem.key + ": " + problem.message,
            "schedule.warmup_steps: expected at most 11, the steps of train.epochs 1, got 12");
}

TEST(CheckTest, AWeightForEachEntry) {
  auto config = good();
  config.data.weights = {2};
  EXPECT_EQ(error_of(config, {{"data.weights", "job.yaml:4"}}),
            "job.yaml:4: data.weights: expected one for each entry of data.train, at least two, "
            "got 1 for 1");
  config.data.train = {"a/", "b/"};
  EXPECT_EQ(error_of(config),
            "data.weights: expected one for each entry of data.train, at least two, got 1 for 2");
  config.data.weights = {2, 0.5};
  EXPECT_EQ(error_of(config), "no error");
}

TEST(CheckTest, Models) {
  auto config = good();
  config.model.init = models::Init::pretrained;
  EXPECT_EQ(error_of(config, {{"model.init", "job.yaml:2"}}),
            "job.yaml:2: model.init: 'pretrained' needs weights to read; set model.path to a "
            "folder with config.json and "
            "*.safetensors");
  config.model.path = "weights/";
  EXPECT_EQ(error_of(config), "no error");
  config.model.num_layers = 2;
  EXPECT_EQ(error_of(config),
            "model.num_layers: the shape of pretrained weights cannot be changed; remove it, or "
            "set model.init to random");
  config = good();
  config.model.num_heads = 3;
  EXPECT_EQ(error_of(config, {{"model.num_heads", "command line"}}),
            "--model.num_heads: 3 heads do not divide a width of 256; set a model.dim that is a "
            "multiple of model.num_heads");
  config = good();
  config.model.preset = "gpt2";
  config.data.seq_len = 1025;
  EXPECT_EQ(error_of(config),
            "data.seq_len: expected at most 1024, the positions of model.preset gpt2, got 1025");
}

TEST(CheckTest, SettingsThatCannotTakeEffect) {
  auto config = good();
  config.optimizer.momentum = 0.9;
  EXPECT_EQ(error_of(config, {{"optimizer.momentum", "job.yaml:9"}}),
            "job.yaml:9: optimizer.momentum: has no effect here: it needs optimizer.type sgd; "
            "remove one of them");
  config.optimizer.type = optim::OptimizerType::sgd;
  EXPECT_EQ(error_of(config), "no error");
  config.optimizer.beta2 = 0.99;
  EXPECT_EQ(
      error_of(config),
      "optimizer.beta2: has no effect here: it needs optimizer.type adamw, adamw8bit, lion or "
      "muon; remove one of them");
  config = good();
  config.schedule.decay_steps = 5;
  EXPECT_EQ(
      error_of(config),
      "schedule.decay_steps: has no effect here: it needs schedule.type wsd; remove one of them");
  config = good();
  config.model.path = "weights/";
  config.model.preset = "small";
  EXPECT_EQ(error_of(config),
            "model.preset: has no effect here: it needs no model.path; remove one of them");
}

using Change = std::function<void(RunConfig&)>;

TEST(CheckTest, SettingsNeedOthersBesideThem) {
  struct Case {
    const char* key;
    Change set, meet;
    const char* needs;
  };
  const Case cases[] = {
      {"parallel.backward_prefetch",
       [](auto& c) { c.parallel.backward_prefetch = parallel::BackwardPrefetch::post; },
       [](auto& c) { c.parallel.placement = parallel::Placement::full_shard; },
       "parallel.placement full_shard"},
      {"parallel.forward_prefetch", [](auto& c) { c.parallel.forward_prefetch = false; },
       [](auto& c) { c.parallel.placement = parallel::Placement::shard_optimizer; },
       "parallel.placement other than replicate"},
      {"parallel.max_gathered_units",
       [](auto& c) {
         c.parallel.placement = parallel::Placement::full_shard, c.parallel.max_gathered_units = 2;
         c.parallel.forward_prefetch = false,
         c.parallel.backward_prefetch = parallel::BackwardPrefetch::none;
       },
       [](auto& c) { c.parallel.forward_prefetch = true; },
       "parallel.forward_prefetch or parallel.backward_prefetch"},
      {"model.seed",
       [](auto& c) {
         c.model.seed = 1, c.model.init = models::Init::pretrained, c.model.path = "weights/";
         c.precision.compute = FloatType::bf16, c.precision.parameters = FloatType::bf16;
       },
       [](auto& c) { c.precision.stochastic_rounding = true; },
       "model.init random, model.dropout, precision.stochastic_rounding, moe.input_jitter, "
       "moe.sampling or moe.drop_policy random"},
      {"data.seed", [](auto& c) { c.data.seed = 1, c.data.shuffle = false; },
       [](auto& c) { c.data.shuffle = true; }, "data.shuffle"},
      {"optimizer.decay_norms_and_biases",
       [](auto& c) { c.optimizer.decay_norms_and_biases = true, c.optimizer.weight_decay = 0; },
       [](auto& c) { c.optimizer.weight_decay = 0.1; }, "optimizer.weight_decay above 0"},
      {"preference.beta", [](auto& c) { c.preference.beta = 0.5; },
       [](auto& c) { c.preference.loss = train::PreferenceLoss::orpo; },
       "preference.loss sigmoid, ipo or orpo"},
      {"preference.label_smoothing",
       [](auto& c) {
         c.preference.label_smoothing = 0.1, c.preference.loss = train::PreferenceLoss::ipo;
       },
       [](auto& c) { c.preference.loss = train::PreferenceLoss::sigmoid; },
       "preference.loss sigmoid"},
      {"preference.loss",
       [](auto& c) {
         c.preference.loss = train::PreferenceLoss::sigmoid,
         c.data.format = data::DataFormat::tokens;
       },
       [](auto& c) { c.data.format = data::DataFormat::records; }, "data.format records"},
      {"checkpoint.async", [](auto& c) { c.checkpoint.async = false; },
       [](auto& c) { c.checkpoint.every = 10; }, "checkpoint.every or checkpoint.every_minutes"},
      {"checkpoint.keep_last",
       [](auto& c) { c.checkpoint.keep_last = 2, c.checkpoint.at_end = false; },
       [](auto& c) { c.checkpoint.at_end = true; },
       "checkpoint.every, checkpoint.every_minutes or checkpoint.at_end"},
      {"checkpoint.strict", [](auto& c) { c.checkpoint.strict = false; },
       [](auto& c) { c.checkpoint.resume = "auto"; }, "checkpoint.resume"},
      {"train.validate_every",
       [](auto& c) { c.train.validate_every = 5, c.data.validation_fraction = 0; },
       [](auto& c) { c.data.validation = {"held_out.txt"}, c.data.validation_fraction = 0.01; },
       "data.validation or data.validation_fraction above 0"},
      {"train.sample_prompt",
       [](auto& c) { c.train.sample_prompt = "x", c.train.sample_tokens = 0; },
       [](auto& c) { c.train.sample_tokens = 10; }, "train.sample_tokens above 0"},
      {"logging.every",
       [](auto& c) { c.logging.every = 5, c.logging.progress = report::ProgressMode::none; },
       [](auto& c) { c.logging.progress = report::ProgressMode::plain; },
       "logging.progress plain or auto, or precision.matmul other than as_compute"},
  };
  for (const auto& [key, set, meet, needs] : cases) {
    auto config = good();
    set(config);
    EXPECT_EQ(error_of(config), std::string(key) + ": has no effect here: it needs " + needs +
                                    "; remove one of them");
    meet(config);
    EXPECT_EQ(error_of(config), "no error") << key;
  }
}

TEST(CheckTest, PreferencesAreOfPairs) {
  auto config = good();
  config.data.shape = data::RowShape::preference;
  EXPECT_THAT(error_of(config), HasSubstr("data.shape: preference needs a loss over pairs"));
  config.preference.loss = train::PreferenceLoss::sigmoid;
  EXPECT_EQ(error_of(config), "no error");
  config.data.shape = data::RowShape::messages;
  EXPECT_THAT(error_of(config), HasSubstr("data.shape: expected preference, or auto"));
  config.data.shape = data::RowShape::automatic;
  config.data.learn = data::Learn::all;
  EXPECT_THAT(error_of(config), HasSubstr("data.learn: all: preference.loss sigmoid compares"));
  config.data.learn = data::Learn::assistant;
  config.model.preset = "gpt2", config.model.dropout = 0.1;
  EXPECT_THAT(error_of(config), HasSubstr("model.dropout: expected 0 with preference.loss"));
}

TEST(CheckTest, OneRankIsNoMistake) {
  auto config = good();
  config.parallel = {.placement = parallel::Placement::full_shard, .reshard_after_forward = false};
  EXPECT_EQ(error_of(config), "no error");
  config.parallel = {.placement = parallel::Placement::full_shard,
                     .backward_prefetch = parallel::BackwardPrefetch::post};
  EXPECT_EQ(error_of(config), "no error");
}

/// A value that is not the default, as the user would write it.
std::string other_value(const Field& field) {
  static const std::map<std::string, std::string> kOf{{"parallel.reshard_after_forward", "false"},
                                                      {"checkpoint.resume", "auto"}};
  if (const auto given = kOf.find(field.key); given != kOf.end()) return given->second;
  const auto usual = yaml_value(field, RunConfig{});
  for (const auto& choice : field.rule.choices) {
    if (choice != usual) return choice;
  }
  if (type_name(field) == "true/false") return usual == "true" ? "false" : "true";
  for (const auto* number : {"2", "4", "0.5", "0.25", "128"}) {
    const bool whole = type_name(field) != "number";
    if (whole && !parse_integer(number)) continue;
    if (number != usual && in_range(*parse_number(number), field.rule.range)) return number;
  }
  return "x";
}

/// Contexts that differ in as many keys as can be.
std::map<std::string, Change> contexts() {
  return {
      {"the defaults", [](auto&) {}},
      {"sharded",
       [](auto& c) {
         c.parallel.placement = parallel::Placement::full_shard,
         c.parallel.offload_params = parallel::OffloadParams::host;
       }},
      {"one unit",
       [](auto& c) {
         c.parallel.placement = parallel::Placement::full_shard,
         c.parallel.units = parallel::Units::model;
       }},
      {"updates in the backward",
       [](auto& c) { c.optimizer.in_backward = true, c.optimizer.max_grad_norm = 0; }},
      {"a pipeline of matrices", [](auto& c) { c.parallel.pp = 2, c.parallel.tp = 2; }},
      {"pretrained", [](auto& c) { c.model.path = "x", c.model.init = models::Init::pretrained; }},
      {"sgd on text",
       [](auto& c) {
         c.optimizer.type = optim::OptimizerType::sgd, c.data.format = data::DataFormat::text;
       }},
      {"bf16 on tokens",
       [](auto& c) {
         c.precision = {.compute = FloatType::bf16, .parameters = FloatType::bf16};
         c.data.format = data::DataFormat::tokens,
         c.schedule.type = optim::LearningRateSchedule::wsd;
       }},
      {"a mixture", [](auto& c) { c.model.path = "x", c.moe.aux_loss = train::AuxLoss::sequence; }},
      {"a mixture with a capacity",
       [](auto& c) { c.model.path = "x", c.moe.capacity_factor = 1.5; }},
      {"forced balance", [](auto& c) { c.model.path = "x", c.moe.force_balance = true; }},
      {"nothing but training", [](auto& c) {
         c.data.validation_fraction = 0, c.data.shuffle = false, c.optimizer.weight_decay = 0;
         c.checkpoint.at_end = false, c.train.sample_tokens = 0,
         c.logging.progress = report::ProgressMode::none;
       }}};
}

/// Every key either says that it has an effect, or setting it is an error that names what it needs.
TEST(CheckTest, NoKeyIsIgnoredInAnyContext) {
  for (const auto& [name, change] : contexts()) {
    for (const auto& section : sections()) {
      for (const auto& field : section.fields) {
        auto config = good();
        change(config);
        config.parallel.num_ranks = config.parallel.pp * config.parallel.tp;
        RawValue raw{.kind = RawValue::Kind::scalar, .text = other_value(field)};
        if (type_name(field).starts_with("mapping")) {
          raw = {.kind = RawValue::Kind::map, .entries = {{"a", "2"}}};
        }
        set_field(field, raw, field.key, config);
        ASSERT_NE(yaml_value(field, config), yaml_value(field, RunConfig{})) << field.key;
        const auto needed = needed_for_effect(field.key, config);
        const auto no_effect = field.key + ": has no effect here: it needs " + needed;
        if (needed.empty()) {
          EXPECT_THAT(error_of(config), Not(StartsWith(no_effect))) << name;
        } else {
          EXPECT_EQ(error_of(config), no_effect + "; remove one of them") << name;
        }
      }
    }
  }
}

TEST(Check, BalanceNeedsExperts) {
  auto config = good();
  config.moe.z_coefficient = 0.1;
  EXPECT_EQ(error_of(config),
            "moe.z_coefficient: has no effect here: the model has no experts; remove it, or set "
            "model.path to a mixture such as Mixtral");
  config.model.path = "x";  // the ranks look
  EXPECT_EQ(error_of(config), "no error");
}

/// A mixture of 8 experts, of which a token takes two, whose config.json has so much noise.
models::ModelShape mixture(double jitter_noise = 0) {
  models::ModelShape shape;
  shape.experts = {.num = 8, .top_k = 2, .jitter_noise = jitter_noise};
  return shape;
}

TEST(Check, ACapacityThatDropsNothingIsRefused) {
  auto config = good();
  config.data.seq_len = 64;
  config.moe.capacity_factor = 2.0;
  EXPECT_FALSE(moe_problem(config, mixture()));
  config.moe.eval_capacity_factor = 4.0;
  const auto problem = moe_problem(config, mixture());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "moe.eval_capacity_factor");
  EXPECT_EQ(
      problem->message,
      "has no effect here: 4 of a token's 2 choices among 8 experts is room for all 64 tokens "
      "of a row; set it to at most 3.937, or remove it");
  config.moe.min_capacity = 64;
  EXPECT_EQ(moe_problem(config, mixture())->message,
            "has no effect here: moe.min_capacity 64 is room for all 64 tokens of a row; set that "
            "below 64, or remove both");
}

TEST(Check, CapacityAndItsPolicy) {
  auto config = good();
  config.model.path = "x";
  config.moe.drop_policy = nn::DropPolicy::position;
  EXPECT_EQ(error_of(config),
            "moe.drop_policy: has no effect here: it needs moe.capacity_factor or "
            "moe.eval_capacity_factor; remove one of them");
  config.moe.eval_capacity_factor = 1.0, config.data.validation_fraction = 0.1;
  EXPECT_EQ(error_of(config), "no error");
  config.moe.drop_policy = nn::DropPolicy::random;
  EXPECT_EQ(error_of(config),
            "moe.drop_policy: random: draws in training alone, where nothing is dropped; set "
            "moe.capacity_factor, or moe.drop_policy to position");
  config.moe.capacity_factor = 1.0;
  EXPECT_EQ(error_of(config), "no error");
}

TEST(Check, TheNoiseOfAConfigJsonIsAskedFor) {
  auto config = good();
  EXPECT_FALSE(moe_problem(config, mixture()));
  EXPECT_EQ(
      moe_problem(config, mixture(0.01))->message,
      "expected a number above 0, as the model's config.json has router_jitter_noise 0.01; set "
      "0.01 (of what enters routers; transformers multiplies what enters experts, too), or "
      "router_jitter_noise to 0 in config.json");
  config.moe.input_jitter = 0.02;
  EXPECT_FALSE(moe_problem(config, mixture(0.01)));
}

TEST(Check, WhatIsDrawnIsNotChosenByBiases) {
  auto config = good();
  config.moe.sampling = nn::ExpertSampling::all;
  EXPECT_FALSE(moe_problem(config, mixture()));
  auto shape = mixture();
  shape.experts.selection_bias = true;
  EXPECT_EQ(moe_problem(config, shape)->message,
            "expected none beside the selection biases that the model has; set none");
  config.moe.selection_bias_rate = 0.01;
  EXPECT_EQ(
      moe_problem(config, mixture())->message,
      "expected none beside the selection biases that moe.selection_bias_rate moves; set none");
}

TEST(Check, WhatIsDrawnIsNotDecidedBefore) {
  auto config = good();
  config.moe.sampling = nn::ExpertSampling::but_first;
  auto shape = mixture();
  EXPECT_FALSE(moe_problem(config, shape));
  shape.experts.top_k = 1;
  EXPECT_EQ(moe_problem(config, shape)->message,
            "has no effect here: a token takes 1 of 8 experts, of which the best is not drawn; set "
            "none");
  config.moe.sampling = nn::ExpertSampling::all;
  EXPECT_FALSE(moe_problem(config, shape));
  shape.experts.top_k = 8;
  EXPECT_EQ(moe_problem(config, shape)->message,
            "has no effect here: a token takes 8 of 8 experts, which is all; set none");
}

// A recipe keeps two checkpoints; an option that saves none makes that moot, and is no mistake.
TEST(Check, AnOptionMayMakeMootWhatStandsInTheFile) {
  RunConfig config;
  config.data.train = {"a.txt"};
  config.parallel.num_ranks = 1;
  config.checkpoint.keep_last = 2;
  config.checkpoint.at_end = false;
  Origins origins{{"checkpoint.keep_last", "job.yaml:3"}, {"checkpoint.at_end", kCommandLine}};
  EXPECT_NO_THROW(check(config, origins));
  origins["checkpoint.at_end"] = "job.yaml:4";
  EXPECT_THROW(check(config, origins), UserError);
  origins = {{"checkpoint.keep_last", kCommandLine}, {"checkpoint.at_end", kCommandLine}};
  EXPECT_THROW(check(config, origins), UserError);
}

}  // namespace
}  // namespace tessera::config
