#include "tessera/config/accelerate/deepspeed_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/testing.h"
#include "tessera/config/accelerate/deepspeed_json.h"
#include "tessera/config/accelerate/deepspeed_keys.h"
#include "tessera/config/accelerate/show.h"
#include "tessera/config/accelerate/testing.h"
#include "tessera/config/fields.h"

namespace tessera::config::accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

using Job = std::vector<std::string>;

Settings deepspeed_settings_of(const std::vector<std::pair<std::string, std::string>>& values) {
  Settings settings;
  int line = 0;
  for (const auto& [key, value] : values) {
    settings.set({.key = key, .value = value, .origin = fmt::format("acc.yaml:{}", ++line)});
  }
  return settings;
}

Job job_lines(const Translation& translation) {
  Job lines;
  for (const auto& override : translation.job) lines.push_back(override.key + "=" + override.value);
  return lines;
}

class DeepspeedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / fmt::format("deepspeed_file_{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& json) const {
    std::ofstream(folder_ / "ds.json", std::ios::binary) << json;
    return folder_ / "ds.json";
  }

  Translation translate(const std::string& json, const Settings& settings = {}) const {
    Translation translation;
    translate_deepspeed_file(write(json), settings, translation);
    return translation;
  }

  /// Translates `keys` beside a ZeRO stage, which every file needs.
  Translation translate_beside(int stage, const std::string& keys,
                               const Settings& settings = {}) const {
    return translate(fmt::format("{{\"zero_optimization\": {{\"stage\": {}}}, {}}}", stage, keys),
                     settings);
  }

  /// The ledger's entry for one key.
  LedgerEntry entry(const Translation& translation, const std::string& key) const {
    for (const auto& one : translation.ledger) {
      if (one.setting.key == key) return one;
    }
    ADD_FAILURE() << "no entry for " << key;
    return {};
  }

  /// The error without the folder.
  std::string error_of(const std::string& json, const Settings& settings = {}) const {
    auto text = testing::message_of([&] { translate(json, settings); });
    const auto folder = folder_.string() + "/";
    for (auto at = text.find(folder); at != std::string::npos; at = text.find(folder)) {
      text.erase(at, folder.size());
    }
    return text;
  }

  fs::path folder_;
};

// ---- Accelerate's templates --------------------------------------------------------------------

const fs::path kTemplates = "tests/fixtures/accelerate_configs/deepspeed_config_templates";

struct Template {
  const char* file;
  Job zero;  ///< what its section zero_optimization becomes
};

class TemplateTest : public ::testing::TestWithParam<Template> {};

TEST_P(TemplateTest, IsTranslatedWhole) {
  const auto file = kTemplates / GetParam().file;
  Translation translation;
  translate_deepspeed_file(file, {}, translation);

  Job expected{"precision.compute=fp16", "precision.autocast=false", "optimizer.type=adamw",
               "schedule.type=linear", "schedule.min_ratio=0"};
  expected.insert(expected.end(), GetParam().zero.begin(), GetParam().zero.end());
  EXPECT_EQ(job_lines(translation), expected);
  EXPECT_EQ(translation.ledger.size(), read_json_lines(file).size());
  for (const auto& entry : translation.ledger) {
    EXPECT_NE(entry.verdict, Verdict::refused) << entry.setting.key;
    EXPECT_TRUE(entry.setting.origin.starts_with(file.string() + ":"));
  }
  auto job = recipe_with(translation.job);
  EXPECT_NO_THROW(check(job.config, job.origins));
}

INSTANTIATE_TEST_SUITE_P(
    Stages, TemplateTest,
    ::testing::Values(Template{"zero_stage1_config.json", {"parallel.placement=shard_optimizer"}},
                      Template{"zero_stage2_config.json", {"parallel.placement=shard_gradients"}},
                      Template{"zero_stage2_offload_config.json",
                               {"parallel.placement=shard_gradients",
                                "parallel.offload_optimizer=true"}},
                      Template{"zero_stage3_config.json", {"parallel.placement=full_shard"}},
                      Template{"zero_stage3_offload_config.json",
                               {"parallel.placement=full_shard", "parallel.offload_params=true"}}));

// ---- every key ---------------------------------------------------------------------------------

std::string sample_value(const DeepspeedKey& key) {
  if (!key.key.choices.empty()) return '"' + key.key.choices.front() + '"';
  switch (key.key.type) {
    case KeyType::boolean:
      return "true";
    case KeyType::integer:
    case KeyType::number:
      return "1";
    case KeyType::list:
      return "[0.5, 0.75]";
    case KeyType::text:
      break;
  }
  return "\"AdamW\"";
}

TEST_F(DeepspeedFileTest, EveryKeyHasAVerdictAndAReasonAndChangesOnlyKeysThatExist) {
  for (const auto& key : deepspeed_file_keys()) {
    const bool zero = key.path().starts_with("zero_optimization.");
    const auto path = key.rule == DeepspeedKey::Rule::section ? key.path() + ".x" : key.path();
    std::string json = sample_value(key);
    for (size_t end = path.size(); end != std::string::npos;) {
      const auto dot = path.rfind('.', end - 1);
      json = fmt::format(R"({{"{}": {}}})", path.substr(dot + 1, end - dot - 1), json);
      end = dot;
    }
    if (!zero) json.insert(1, "\"zero_optimization\": {}, ");
    const auto translation = translate(json);
    const auto found = entry(translation, path);
    EXPECT_TRUE(!found.note.empty() || found.verdict == Verdict::honoured) << path;
    for (const auto& override : translation.job) {
      EXPECT_NE(find_field(override.key), nullptr) << override.key;
    }
  }
}

/// JSON values that the key may have; the first is its "off" or smallest.
std::vector<std::string> sample_values(const DeepspeedKey& key) {
  std::vector<std::string> values;
  for (const auto& choice : key.key.choices) values.push_back('"' + choice + '"');
  if (!values.empty()) return values;
  if (key.key.type == KeyType::boolean) return {"false", "true"};
  if (key.key.type == KeyType::list) return {"[0.5, 0.75]", "[0.25, 0.5]"};
  if (key.path() == "optimizer.type") return {"\"AdamW\"", "\"SGD\""};
  if (key.path() == "scheduler.type") return {"\"WarmupLR\"", "\"WarmupCosineLR\""};
  if (key.key.type == KeyType::text) return {"\"linear\"", "\"log\"", "\"fp32\"", "\"bf16\""};
  return {"0", "1", "2", "0.5"};
}

/// A file in which the key counts, as far as one can be.
std::string json_with(const DeepspeedKey& key, const std::string& value) {
  auto json = nlohmann::json::parse(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
          "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {}}})");
  const auto& path = key.path();
  if (path == "optimizer.params.momentum") json["optimizer"]["type"] = "SGD";
  if (path.starts_with("fp16.") || path.starts_with("torch_autocast.")) json.erase("bf16");
  if (path.starts_with("zero_optimization.cpu_offload")) {
    json["zero_optimization"].erase("offload_optimizer");
  }
  auto* at = &json;
  for (size_t begin = 0; begin < path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    at = &(*at)[path.substr(begin, end - begin)];
    begin = end + 1;
  }
  *at = nlohmann::json::parse(value);
  return json.dump();
}

TEST_F(DeepspeedFileTest, WhatIsTranslatedChangesTheRun) {
  for (const auto& key : deepspeed_file_keys()) {
    if (key.rule == DeepspeedKey::Rule::section) continue;
    std::set<std::string> effects;
    bool translated = false;
    for (const auto& value : sample_values(key)) {
      Translation translation;
      const auto json = json_with(key, value);
      if (testing::message_of([&] { translation = translate(json); }) != "no error") continue;
      translated = translated || entry(translation, key.path()).verdict == Verdict::translated;
      auto effect = fmt::format("{}", fmt::join(job_lines(translation), " "));
      if (translation.accumulation) effect += " accumulated " + translation.accumulation->value;
      effects.insert(effect);
    }
    ASSERT_FALSE(effects.empty()) << key.path();
    const bool ignored = key.rule == DeepspeedKey::Rule::ignored;
    EXPECT_TRUE(!translated || effects.size() > 1) << key.path();
    EXPECT_TRUE(!ignored || effects.size() == 1) << key.path();
  }
}

TEST_F(DeepspeedFileTest, ExpertsAreSharedOutOverAsManyRanks) {
  const auto file = [&](const std::string& enabled) {
    return translate_beside(
        1, fmt::format("\"expert_parallel\": {{\"enabled\": {}, \"autoep_size\": 4, "
                       "\"preset_model\": \"mixtral\", \"top_k\": \"auto\", "
                       "\"load_balance_coeff\": null}}",
                       enabled));
  };
  const auto on = file("true"), off = file("false");
  const auto sets = [](const Translation& translation) {
    return std::ranges::any_of(translation.job, [](const auto& setting) {
      return setting.key == "parallel.ep" && setting.value == "4";
    });
  };
  EXPECT_TRUE(sets(on));
  EXPECT_FALSE(sets(off));
  EXPECT_EQ(entry(off, "expert_parallel.autoep_size").note, "counts with expert_parallel.enabled");
  EXPECT_EQ(entry(on, "expert_parallel.preset_model").verdict, Verdict::not_applicable);
  const auto refused = translate_beside(
      1, "\"expert_parallel\": {\"enabled\": true, \"expert_tensor_parallel_size\": 2}");
  EXPECT_EQ(entry(refused, "expert_parallel.expert_tensor_parallel_size").verdict,
            Verdict::refused);
}

TEST_F(DeepspeedFileTest, SecretsAndLineFeedsAreNotShown) {
  const auto translation =
      translate_beside(2, R"("comet": {"enabled": true, "api_key": "s3cr3t"})");
  EXPECT_EQ(ledger_text(translation.ledger).find("s3cr3t"), std::string::npos);
  EXPECT_EQ(show_json(translation).dump().find("s3cr3t"), std::string::npos);
  const auto strict = testing::message_of(
      [&] { check_ledger({entry(translation, "comet.api_key")}, /*strict=*/true); });
  EXPECT_THAT(strict, HasSubstr("comet.api_key (hidden) has no effect here"));
  EXPECT_EQ(error_of(R"({"zero_optimization": {}, "data_efficiency": {"a\nb": 1}})"),
            "ds.json:1: expected a name on one line, got 'a\\nb'");
  EXPECT_EQ(
      error_of(R"({"zero_optimization": {}, "data_efficiency": {"a": "b\nc"}})"),
      "ds.json:1: data_efficiency.a: expected a text on one line, UTF-8 of at most 4096 bytes, got "
      "'b\\nc'");
}

TEST_F(DeepspeedFileTest, AFileIsKnownByItsSections) {
  for (const auto* json : {R"({"zero_optimization": {"stage": 2}})", R"({"optimizer": {}})",
                           R"({"bf16": {"enabled": true}, "modle": {}})"}) {
    EXPECT_EQ(kind_of(write(json)), FileKind::deepspeed) << json;
  }
  EXPECT_EQ(kind_of(write(R"({"distributed_type": "NO", "fp16": true})")), FileKind::accelerate);
  // A slip in a job file does not make it another kind of file.
  EXPECT_EQ(kind_of(write("optimizer:\n  type: sgd\nmodle:\n  layers: 2\n")), FileKind::job);
}

TEST_F(DeepspeedFileTest, WhatAJobFileCannotSayIsNamed) {
  const auto translation =
      translate_beside(2, R"("optimizer": {"type": "AdamW", "params": {"betas": [0.9, 2]}})");
  EXPECT_THAT(testing::message_of([&] { native_yaml(translation); }),
              EndsWith("ds.json:1: optimizer.beta2: expected a number in [0, 1), got '2'"));
}

TEST_F(DeepspeedFileTest, OrderAndLinesAreThoseOfTheFile) {
  const auto translation = translate(
      "{\n  \"steps_per_print\": 2e3,\n  \"zero_optimization\": {\n    \"stage\": 3,\n"
      "    \"sub_group_size\": 1e9, \"offload_param\":\n {\"device\"\n: \"none\"}\n  },\n"
      "  \"optimizer\": {\"type\": \"adamW\", \"params\": {\"betas\": [0.8, 0.99]}}\n}\n");
  std::vector<std::string> lines;
  for (const auto& [setting, verdict, note] : translation.ledger) {
    const auto line = setting.origin.substr(setting.origin.rfind('/') + 1);
    lines.push_back(fmt::format("{} {} {}", line, setting.key, setting.value));
  }
  EXPECT_THAT(lines,
              ElementsAre("ds.json:2 steps_per_print 2000", "ds.json:4 zero_optimization.stage 3",
                          "ds.json:5 zero_optimization.sub_group_size 1000000000",
                          "ds.json:6 zero_optimization.offload_param.device none",
                          "ds.json:9 optimizer.type adamW",
                          "ds.json:9 optimizer.params.betas [0.8, 0.99]"));
  EXPECT_THAT(translation.job.back().origin, EndsWith("ds.json:9"));
}

// ---- translations ------------------------------------------------------------------------------

TEST_F(DeepspeedFileTest, BatchesBecomeGlobalAndMicroBatch) {
  const auto two = deepspeed_settings_of({{"num_processes", "2"}});
  struct Case {
    const char* keys;
    Settings settings;
    Job job;  ///< after the placement
  };
  const Case cases[] = {
      {R"("train_batch_size": 64)", {}, {"train.global_batch=64"}},
      {R"("train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8)",
       two,
       {"train.micro_batch=4", "train.global_batch=64"}},
      {R"("train_micro_batch_size_per_gpu": 4)",
       two,
       {"train.micro_batch=4", "train.global_batch=8"}},
      {R"("train_micro_batch_size_per_gpu": 4)", {}, {"train.micro_batch=4"}},
      {R"("train_batch_size": 64, "gradient_accumulation_steps": 8)",
       two,
       {"train.global_batch=64"}},
      {R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4)",
       two,
       {"train.global_batch=16", "train.micro_batch=4"}},
      {R"("train_batch_size": "auto", "gradient_accumulation_steps": "auto")", two, {}},
  };
  for (const auto& one : cases) {
    auto job = job_lines(translate_beside(1, one.keys, one.settings));
    ASSERT_EQ(job.front(), "parallel.placement=shard_optimizer");
    job.erase(job.begin());
    EXPECT_EQ(job, one.job) << one.keys;
  }
  const auto portions =
      translate_beside(1, R"("train_batch_size": 64, "gradient_accumulation_steps": 8)");
  EXPECT_EQ(portions.accumulation->value, "8");
  EXPECT_THAT(portions.accumulation->origin, EndsWith("ds.json:1"));
  EXPECT_EQ(entry(portions, "gradient_accumulation_steps").note,
            "train.micro_batch=share of a rank / 8");
}

struct KeyCase {
  int stage;
  const char* keys;
  const char* key;
  Verdict verdict;
  Job job;  ///< after the placement
};

TEST_F(DeepspeedFileTest, ValuesDecide) {
  using enum Verdict;
  const KeyCase cases[] = {
      {0,
       R"("gradient_clipping": 0.5)",
       "gradient_clipping",
       translated,
       {"optimizer.max_grad_norm=0.5"}},
      {0, R"("gradient_clipping": "auto")", "gradient_clipping", honoured, {}},
      {0,
       R"("bf16": {"enabled": true})",
       "bf16.enabled",
       translated,
       {"precision.compute=bf16", "precision.autocast=false"}},
      {0,
       R"("bfloat16": {"enabled": true})",
       "bf16.enabled",
       translated,
       {"precision.compute=bf16", "precision.autocast=false"}},
      {0,
       R"("bf16": {"enabled": false})",
       "bf16.enabled",
       translated,
       {"precision.compute=fp32", "precision.autocast=false"}},
      {0, R"("fp16": {"loss_scale": 128})", "fp16.loss_scale", refused, {}},
      {0,
       R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})",
       "torch_autocast.enabled",
       translated,
       {"precision.compute=bf16", "precision.autocast=true"}},
      {0,
       R"("communication_data_type": "fp32")",
       "communication_data_type",
       translated,
       {"precision.reduce=fp32"}},
      {0, R"("communication_data_type": "bf16")", "communication_data_type", refused, {}},
      {0,
       R"("communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp16"})",
       "data_types.grad_accum_dtype",
       refused,
       {"precision.reduce=fp32"}},
      {0,
       R"("optimizer": {"type": "Adam"})",
       "optimizer.type",
       translated,
       {"optimizer.type=adamw"}},
      {0,
       R"("optimizer": {"params": {"adam_w_mode": false}, "type": "Adam"})",
       "optimizer.params.adam_w_mode",
       refused,
       {"optimizer.type=adamw"}},
      {0,
       R"("optimizer": {"params": {"adam_w_mode": false, "weight_decay": 0}, "type": "Adam"})",
       "optimizer.params.adam_w_mode",
       honoured,
       {"optimizer.weight_decay=0", "optimizer.type=adamw"}},
      {0,
       R"("optimizer": {"type": "SGD", "params": {"momentum": 0.9}})",
       "optimizer.params.momentum",
       translated,
       {"optimizer.type=sgd", "optimizer.momentum=0.9"}},
      {0, R"("optimizer": {"type": "Lamb"})", "optimizer.type", refused, {}},
      {0,
       R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4}})",
       "scheduler.params.warmup_max_lr",
       translated,
       {"schedule.type=constant", "optimizer.learning_rate=0.0001"}},
      {0,
       R"("scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 90,
           "cos_min_ratio": 0.2, "warmup_num_steps": 10}})",
       "scheduler.params.cos_min_ratio",
       honoured,
       {"schedule.type=cosine", "schedule.min_ratio=0.2", "train.steps=90",
        "schedule.warmup_steps=10"}},
      {0, R"("scheduler": {"type": "OneCycle"})", "scheduler.type", refused, {}},
      {0,
       R"("scheduler": {"params": {"warmup_type": "log"}})",
       "scheduler.params.warmup_type",
       refused,
       {}},
      {0,
       R"("tensorboard": {"enabled": false})",
       "tensorboard.enabled",
       translated,
       {"logging.tensorboard=false"}},
      {0, R"("elasticity": {"enabled": true, "max_gpus": 8})", "elasticity.enabled", refused, {}},
      {0,
       R"("data_efficiency": {"enabled": false, "seed": 1})",
       "data_efficiency.seed",
       not_applicable,
       {}},
      {0,
       R"("data_efficiency": {"enabled": true, "seed": 1})",
       "data_efficiency.seed",
       refused,
       {}},
      {0, R"("flops_profiler": null)", "flops_profiler", honoured, {}},
      {0,
       R"("activation_checkpointing": {"cpu_checkpointing": true})",
       "activation_checkpointing.cpu_checkpointing",
       translated,
       {"memory.offload_activations=true"}},
      {0,
       R"("activation_checkpointing": {"cpu_checkpointing": false})",
       "activation_checkpointing.cpu_checkpointing",
       honoured,
       {}},
  };
  for (const auto& one : cases) {
    const auto translation = translate_beside(one.stage, one.keys);
    EXPECT_EQ(entry(translation, one.key).verdict, one.verdict) << one.keys;
    auto job = job_lines(translation);
    job.erase(job.begin());
    EXPECT_EQ(job, one.job) << one.keys;
  }
}

TEST_F(DeepspeedFileTest, ZeroDecides) {
  using enum Verdict;
  const KeyCase cases[] = {
      {0, R"("cpu_offload": true)", "cpu_offload", not_applicable, {}},
      {1, R"("cpu_offload": true)", "cpu_offload", translated, {"parallel.offload_optimizer=true"}},
      {2, R"("offload_param": {"device": "cpu"})", "offload_param.device", not_applicable, {}},
      {3,
       R"("offload_param": {"device": "cpu"})",
       "offload_param.device",
       translated,
       {"parallel.offload_params=true"}},
      {3,
       R"("offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"})",
       "offload_optimizer.device",
       translated,
       {"parallel.offload_optimizer=nvme", "offload.paths=/nvme"}},
      {3,
       R"("offload_param": {"device": "nvme", "nvme_path": "/nvme"})",
       "offload_param.device",
       translated,
       {"parallel.offload_params=nvme", "parallel.offload_optimizer=nvme", "offload.paths=/nvme"}},
      {3,
       R"("offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "cpu"})",
       "offload_optimizer.device",
       translated,
       {"parallel.offload_params=nvme", "parallel.offload_optimizer=nvme"}},
      {3,
       R"("offload_param": {"device": "nvme", "nvme_path": "/a"},
          "offload_optimizer": {"device": "nvme", "nvme_path": "/b"})",
       "offload_param.nvme_path",
       not_applicable,
       {"parallel.offload_params=nvme", "parallel.offload_optimizer=nvme", "offload.paths=/b"}},
      {2, R"("offload_param": {"device": "nvme"})", "offload_param.device", not_applicable, {}},
      {3,
       R"("offload_optimizer": {"device": "cpu", "ratio": 0.3})",
       "offload_optimizer.ratio",
       translated,
       {"parallel.offload_optimizer=true", "parallel.offload_fraction=0.3"}},
      {2,
       R"("offload_optimizer": {"device": "cpu", "ratio": 0.3})",
       "offload_optimizer.ratio",
       not_applicable,
       {"parallel.offload_optimizer=true"}},
      {3,
       R"("zero_hpz_partition_size": 2)",
       "zero_hpz_partition_size",
       translated,
       {"parallel.reshard_after_forward=2"}},
      {3, R"("mics_shard_size": 4)", "mics_shard_size", translated, {"parallel.dp_shard=4"}},
      {3, R"("mics_shard_size": -1)", "mics_shard_size", honoured, {}},
      {3, R"("zero_quantized_weights": true)", "zero_quantized_weights", refused, {}},
      {3, R"("zero_quantized_weights": false)", "zero_quantized_weights", honoured, {}},
      {1,
       R"("ignore_unused_parameters": false)",
       "ignore_unused_parameters",
       translated,
       {"train.report_unused_parameters=true"}},
  };
  for (const auto& one : cases) {
    const auto translation = translate(
        fmt::format(R"({{"zero_optimization": {{"stage": {}, {}}}}})", one.stage, one.keys));
    EXPECT_EQ(entry(translation, std::string("zero_optimization.") + one.key).verdict, one.verdict)
        << one.stage << one.keys;
    auto job = job_lines(translation);
    job.erase(job.begin());
    EXPECT_EQ(job, one.job) << one.keys;
  }
  EXPECT_THAT(job_lines(translate(R"({"zero_optimization": {}})")),
              ElementsAre("parallel.placement=replicate"));
  EXPECT_THAT(job_lines(translate(R"({"zero_optimization": {"stage": "auto"}})")),
              ElementsAre("parallel.placement=shard_gradients"));
}

TEST_F(DeepspeedFileTest, AutoTakesWhatAccelerateSays) {
  const auto settings = deepspeed_settings_of({{"mixed_precision", "bf16"},
                                               {"deepspeed_config.gradient_clipping", "0.25"},
                                               {"deepspeed_config.zero_stage", "3"}});
  const auto translation = translate(
      R"({"zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"},
          "fp16": {"enabled": "auto"}, "gradient_clipping": "auto"})",
      settings);
  EXPECT_THAT(job_lines(translation),
              ElementsAre("parallel.placement=full_shard", "precision.compute=bf16",
                          "precision.autocast=false", "optimizer.max_grad_norm=0.25"));
  EXPECT_EQ(entry(translation, "fp16.enabled").note, "auto, so false");
  EXPECT_EQ(entry(translation, "zero_optimization.stage").note,
            "parallel.placement=full_shard; auto, so 3");
  // Without a word about precision nothing is said of it.
  EXPECT_THAT(job_lines(translate_beside(0, R"("fp16": {"enabled": "auto"})")),
              ElementsAre("parallel.placement=replicate"));
}

// ---- mistakes ----------------------------------------------------------------------------------

TEST_F(DeepspeedFileTest, MistakesAreNamedWithFileAndLine) {
  const struct {
    const char* json;
    const char* error;
  } cases[] = {
      {"{\n  \"zero_optimization\": {\"stage\": 2,}\n}",
       "ds.json:2: expected JSON, got an error in column 36: while parsing object key - unexpected "
       "'}'; expected string literal"},
      {"{\n  \"zero_optimization\": tru\n}",
       "ds.json:2: expected JSON, got an error in column 27: while parsing value - invalid "
       "literal"},
      {"",
       "ds.json:1: expected JSON, got an error in column 1: while parsing value - unexpected "
       "end of input; expected '[', '{', or a literal"},
      {"[1]", "ds.json: expected a JSON object with keys such as \"zero_optimization\", got '[1]'"},
      {"{}",
       "ds.json: expected a key \"zero_optimization\", as {\"zero_optimization\": {\"stage\": "
       "2}}; Accelerate needs it, too"},
      {"{\"zero_optimization\": {\"stage\": 2,\n\"stage\": 3}}",
       "ds.json:2: 'zero_optimization.stage' stands twice, first in line 1; keep one of them"},
      {"{\"zero_optimisation\": {\"stage\": 2}}",
       "ds.json:1: unknown key 'zero_optimisation.stage'; did you mean 'zero_optimization.stage'?"},
      {"{\"zero_optimization\":\n{\"gradient_clipping\": 2}}",
       "ds.json:2: unknown key 'zero_optimization.gradient_clipping'; did you mean "
       "'gradient_clipping'?"},
      {"{\"zero_optimization\": 2}",
       "ds.json:1: zero_optimization: expected an object, as {\"enabled\": false}, got '2'"},
      {"{\"zero_optimization\": {\"stage\": 4}}",
       "ds.json:1: zero_optimization.stage: expected a whole number in [0, 3], got '4'"},
      {"{\"zero_optimization\": {\"reduce_bucket_size\": -5}}",
       "ds.json:1: zero_optimization.reduce_bucket_size: expected a whole number >= 0, got '-5'"},
      {"{\"zero_optimization\": {\"offload_param\": {\"device\": \"gpu\"}}}",
       "ds.json:1: zero_optimization.offload_param.device: expected one of none, cpu, nvme, got "
       "'gpu'; did you mean 'cpu'?"},
      {"{\"zero_optimization\": {\"overlap_comm\": \"auto\"}}",
       "ds.json:1: zero_optimization.overlap_comm: expected true or false, got 'auto'"},
      {"{\"zero_optimization\": {}, \"optimizer\": {\"params\": {\"betas\": [1]}}}",
       "ds.json:1: optimizer.params.betas: expected two numbers, as [0.9, 0.95], got [1]"},
      {"{\"zero_optimization\": {}, \"train_batch_size\": 1e999}",
       "ds.json:1: a number is too large"},
  };
  for (const auto& one : cases) EXPECT_EQ(error_of(one.json), one.error);
  EXPECT_THAT(error_of(std::string(100, '[')), HasSubstr("nested too deep"));
}

TEST_F(DeepspeedFileTest, ContradictionsNameBothOrigins) {
  EXPECT_EQ(error_of("{\"zero_optimization\": {},\n\"fp16\": {\"enabled\": true}}",
                     deepspeed_settings_of({{"mixed_precision", "bf16"}})),
            "ds.json:2: fp16.enabled true contradicts mixed_precision bf16 (acc.yaml:1); keep one "
            "of them, or write \"auto\" here");
  EXPECT_EQ(error_of("{\"zero_optimization\": {\"stage\": 2}}",
                     deepspeed_settings_of({{"deepspeed_config.zero_stage", "3"}})),
            "ds.json:1: zero_optimization.stage 2 contradicts deepspeed_config.zero_stage 3 "
            "(acc.yaml:1); keep one of them, or write \"auto\" here");
  EXPECT_EQ(error_of("{\"zero_optimization\": {},\n\"fp16\": {\"enabled\": true},\n"
                     "\"bf16\": {\"enabled\": true}}"),
            "ds.json:3: bf16.enabled contradicts fp16.enabled (ds.json:2); keep one of them");
  EXPECT_EQ(error_of("{\"zero_optimization\": {}, \"train_batch_size\": 30,\n"
                     "\"train_micro_batch_size_per_gpu\": 4,\n\"gradient_accumulation_steps\": 2}",
                     deepspeed_settings_of({{"num_processes", "4"}})),
            "ds.json:1: train_batch_size 30 is not train_micro_batch_size_per_gpu 4 (ds.json:2) x "
            "gradient_accumulation_steps 2 (ds.json:3) x num_processes 4 (acc.yaml:1); change one "
            "of them");
  EXPECT_EQ(error_of("{\"zero_optimization\": {}, \"train_batch_size\": 30}",
                     deepspeed_settings_of({{"num_processes", "4"}})),
            "ds.json:1: train_batch_size 30 is no multiple of num_processes 4 (acc.yaml:1); change "
            "one of them");
  // What agrees, or was never asked for ('no' is what a launcher exports then), is no
  // contradiction.
  EXPECT_EQ(error_of("{\"zero_optimization\": {\"stage\": 3}, \"fp16\": {\"enabled\": true}}",
                     deepspeed_settings_of(
                         {{"mixed_precision", "no"}, {"deepspeed_config.zero_stage", "3"}})),
            "no error");
}

}  // namespace
}  // namespace tessera::config::accelerate
