#include "tessera/config/accelerate/questions.h"

#include <gmock/gmock.h>

#include "tessera/config/accelerate/keys.h"
#include "tessera/config/accelerate/ledger.h"

namespace tessera::config::accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

Surroundings laptop() { return {.machine = {.num_cores = 8, .memory_bytes = 64 * kGiB}}; }

Surroundings gpu_server() {
  return {.machine = {.num_cores = 64,
                      .memory_bytes = 512 * kGiB,
                      .gpus = std::vector<std::string>(4, "NVIDIA H200")}};
}

/// The names of the questions that are asked if the answers are `script`, and else the defaults.
std::vector<std::string> asked(const Surroundings& here, const Answers& script) {
  std::vector<std::string> names;
  Answers answers;
  while (const auto question = next_question(here, answers)) {
    names.push_back(question->name);
    const auto scripted = script.find(question->name);
    answers[question->name] = scripted == script.end() ? question->default_value : scripted->second;
  }
  return names;
}

/// That question, when all before it was answered like this.
Question question(const std::string& name, const Surroundings& here, Answers answers) {
  answers.erase(name);
  while (auto next = next_question(here, answers)) {
    if (next->name == name) return *next;
    answers[next->name] = next->default_value;
  }
  ADD_FAILURE() << name << " is not asked";
  return {};
}

std::vector<std::string> consequences(const Question& question) {
  std::vector<std::string> texts;
  for (const auto& choice : question.choices) texts.push_back(choice.consequence);
  return texts;
}

std::string text_of(const Settings& settings, const std::string& key) {
  const auto* setting = settings.find(key);
  return setting == nullptr ? "-" : setting->value;
}

TEST(Questions, OnlyWhatMattersHereIsAsked) {
  EXPECT_THAT(asked(laptop(), {{"num_processes", "1"}}),
              ElementsAre("num_machines", "num_processes", "model", "mixed_precision"));
  EXPECT_THAT(asked(laptop(), {}),
              ElementsAre("num_machines", "num_processes", "model", "strategy", "mixed_precision"));
  EXPECT_THAT(
      asked(gpu_server(), {{"strategy", "zero2"}}),
      ElementsAre("device", "num_machines", "num_processes", "model", "strategy", "mixed_precision",
                  "offload", "gradient_accumulation_steps", "gradient_clipping"));
  EXPECT_THAT(asked(gpu_server(), {{"device", "cpu"}, {"strategy", "zero2"}}),
              Not(Contains("offload")));
  EXPECT_THAT(asked(gpu_server(), {{"num_processes", "2"}}), Contains("gpu_ids"));
  EXPECT_THAT(
      asked(laptop(), {{"strategy", "fsdp"}, {"fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"}}),
      ElementsAre("num_machines", "num_processes", "model", "strategy", "mixed_precision",
                  "fsdp_auto_wrap_policy", "fsdp_min_num_params", "fsdp_activation_checkpointing"));
  EXPECT_THAT(
      asked(laptop(), {{"strategy", "deepspeed_file"}}),
      ElementsAre("num_machines", "num_processes", "model", "strategy", "deepspeed_config_file"));
}

TEST(Questions, MachinesAreNamedUnlessSlurmNamesThem) {
  auto here = laptop();
  EXPECT_THAT(asked(here, {{"num_machines", "2"}, {"main_process_ip", "n0"}}),
              ElementsAre("num_machines", "machine_rank", "main_process_ip", "main_process_port",
                          "num_processes", "model", "strategy", "mixed_precision"));
  here.slurm = true;
  EXPECT_THAT(asked(here, {{"num_machines", "2"}}),
              ElementsAre("device", "num_machines", "num_processes", "model", "strategy",
                          "mixed_precision"));
}

TEST(Questions, DefaultsFitTheMachine) {
  EXPECT_EQ(question("num_processes", laptop(), {}).default_value, "4");  // one per two cores
  EXPECT_EQ(question("num_processes", gpu_server(), {{"num_machines", "2"}}).default_value, "8");
  EXPECT_EQ(question("mixed_precision", laptop(), {}).default_value, "no");
  EXPECT_EQ(question("mixed_precision", gpu_server(), {}).default_value, "bf16");
  EXPECT_EQ(question("gpu_ids", gpu_server(), {{"num_processes", "2"}}).default_value, "0,1");
  EXPECT_EQ(question("strategy", laptop(), {{"model", "500M"}}).default_value, "replicate");
  EXPECT_EQ(question("strategy", laptop(), {{"model", "7B"}}).default_value, "fsdp");
}

/// The consequences are those of the table of docs/data_parallel.md for 4 processes.
TEST(Questions, ConsequencesInMemory) {
  EXPECT_THAT(
      consequences(question("strategy", laptop(), {})),
      ElementsAre("16 bytes per parameter per process", "10 bytes per parameter per process",
                  "7 bytes per parameter per process", "4 bytes per parameter per process", ""));
  EXPECT_THAT(consequences(question("strategy", laptop(), {{"model", "1.073741824B"}})),
              ElementsAre("16.0 GiB per process", "10.0 GiB per process", "7.0 GiB per process",
                          "4.0 GiB per process", ""));
  EXPECT_THAT(consequences(question("strategy", laptop(), {{"model", "llama-3.2-1b"}})),
              Contains("18.4 GiB per process, 73.7 GiB: too much"));
  const auto mixed = [](const char* strategy) {
    return question("mixed_precision", gpu_server(), {{"strategy", strategy}})
        .choices.at(1)
        .consequence;
  };
  EXPECT_THAT(mixed("replicate"), StartsWith("18 bytes"));
  EXPECT_THAT(mixed("zero1"), StartsWith("9 bytes"));
  EXPECT_THAT(mixed("zero2"), StartsWith("6 bytes"));
  EXPECT_THAT(mixed("fsdp"), StartsWith("4 bytes"));
  const Answers two_machines{{"num_machines", "2"}, {"main_process_ip", "n0"}};
  EXPECT_THAT(
      consequences(question("strategy", gpu_server(), two_machines)),
      ElementsAre("16 bytes per parameter per process", "9 bytes per parameter per process",
                  "5.5 bytes per parameter per process", "2 bytes per parameter per process",
                  "4 bytes per parameter per process", ""));
}

TEST(Questions, ConsequencesOfOffload) {
  const auto offload = [](Answers answers) {
    answers["model"] = "1.073741824B";
    return consequences(question("offload", gpu_server(), answers));
  };
  EXPECT_THAT(
      offload({{"strategy", "zero2"}, {"mixed_precision", "bf16"}}),
      ElementsAre("6.0 GiB on each GPU", "2.0 GiB on each GPU, 16.0 GiB on each host; slower"));
  EXPECT_THAT(
      offload({{"strategy", "zero1"}, {"mixed_precision", "no"}}),
      ElementsAre("10.0 GiB on each GPU", "8.0 GiB on each GPU, 8.0 GiB on each host; slower"));
  EXPECT_THAT(offload({{"strategy", "fsdp"}}),
              ElementsAre("4.0 GiB on each GPU",
                          "the units in use on each GPU, 16.0 GiB on each host; slower"));
}

TEST(Questions, Bf16IsPraisedWhereTheCpuHasIt) {
  auto here = laptop();
  EXPECT_THAT(question("mixed_precision", here, {}).choices.at(1).consequence,
              HasSubstr("no faster on this CPU"));
  here.machine.isa = {"avx2", "avx512_bf16"};
  EXPECT_THAT(question("mixed_precision", here, {}).choices.at(1).consequence,
              HasSubstr("; faster"));
}

TEST(Questions, WhatIsNoAnswer) {
  const auto problem = [](const char* name, const std::string& answer, const Answers& before = {}) {
    return question(name, gpu_server(), before).problem(answer);
  };
  EXPECT_EQ(problem("num_machines", "2"), "");
  EXPECT_EQ(problem("num_machines", "0"), "expected a whole number from 1 to 65536");
  EXPECT_EQ(problem("num_machines", "2x"), "expected a whole number from 1 to 65536");
  EXPECT_EQ(problem("num_processes", "4"), "");
  EXPECT_EQ(problem("num_processes", "5"), "expected a whole number from 1 to 4");
  const Answers two{{"num_machines", "2"}};
  EXPECT_EQ(problem("num_processes", "6", two), "");
  EXPECT_EQ(problem("num_processes", "7", two),
            "expected a multiple of 2, as each machine starts equally many");
  EXPECT_EQ(problem("machine_rank", "2", two), "expected a whole number from 0 to 1");
  EXPECT_EQ(problem("main_process_ip", "", two), "expected a name or an address, such as 10.0.0.1");
  EXPECT_EQ(problem("main_process_port", "70000", two), "expected a whole number from 1 to 65535");
  for (const char* good : {"", "7B", "350m", "1e9", "gpt2"}) EXPECT_EQ(problem("model", good), "");
  EXPECT_EQ(problem("model", "llama-3-8"),
            "expected a number such as 7B, or one of micro, tiny, small, gpt2, llama-3.2-1b, "
            "llama-3-8b, llama-3-70b, llama-3.1-405b");
  for (const char* bad : {"-7B", "0", "7BB", "nan", "1e99"}) {
    EXPECT_THAT(problem("model", bad), StartsWith("expected a number such as 7B"));
  }
  const Answers three{{"num_processes", "3"}};
  EXPECT_EQ(problem("gpu_ids", "0,3,1", three), "");
  for (const char* bad : {"", "0,1", "0,1,1", "0,1,4", "0,1,", "0,1,2,3"}) {
    EXPECT_EQ(problem("gpu_ids", bad, three),
              "expected 3 different numbers from 0 to 3, such as 0,1")
        << bad;
  }
  EXPECT_EQ(problem("deepspeed_config_file", "absent.json", {{"strategy", "deepspeed_file"}}),
            "expected the name of a file that is there");
  EXPECT_EQ(problem("gradient_clipping", "inf", {{"strategy", "zero1"}}),
            "expected a number of 0 or more");
}

TEST(Questions, EachStrategyInAcceleratesWords) {
  const auto settings = [](Answers answers) {
    return settings_from_answers(gpu_server(), std::move(answers));
  };
  const auto type = [&](const Answers& answers) {
    return text_of(settings(answers), "distributed_type");
  };
  EXPECT_EQ(type({}), "MULTI_GPU");
  EXPECT_EQ(type({{"device", "cpu"}}), "MULTI_CPU");
  EXPECT_EQ(type({{"num_processes", "1"}}), "NO");

  const auto zero = settings({{"strategy", "zero1"}, {"offload", "true"}});
  EXPECT_EQ(text_of(zero, "distributed_type"), "DEEPSPEED");
  EXPECT_EQ(text_of(zero, "deepspeed_config.zero_stage"), "1");
  EXPECT_EQ(text_of(zero, "deepspeed_config.offload_optimizer_device"), "cpu");
  EXPECT_EQ(text_of(zero, "deepspeed_config.gradient_clipping"), "1.0");

  const auto fsdp = settings({{"strategy", "fsdp"},
                              {"fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"},
                              {"fsdp_min_num_params", "2.5M"}});
  EXPECT_EQ(text_of(fsdp, "distributed_type"), "FSDP");
  EXPECT_EQ(text_of(fsdp, "fsdp_config.fsdp_version"), "2");
  EXPECT_EQ(text_of(fsdp, "fsdp_config.fsdp_min_num_params"), "2500000");
  EXPECT_EQ(text_of(fsdp, "fsdp_config.fsdp_transformer_layer_cls_to_wrap"), "-");

  const auto hybrid = settings({{"num_machines", "2"}, {"strategy", "hybrid"}});
  const std::string prefix = "parallelism_config.parallelism_config_";
  EXPECT_EQ(text_of(hybrid, prefix + "dp_replicate_size"), "2");
  EXPECT_EQ(text_of(hybrid, prefix + "dp_shard_size"), "4");

  const auto file =
      settings({{"strategy", "deepspeed_file"}, {"deepspeed_config_file", "zero.json"}});
  EXPECT_EQ(text_of(file, "deepspeed_config.deepspeed_config_file"), "zero.json");
  EXPECT_EQ(text_of(file, "deepspeed_config.zero_stage"), "-");
  EXPECT_EQ(text_of(file, "mixed_precision"), "-");
}

/// Whatever was chosen can be run here.
TEST(Questions, NothingThatIsWrittenIsRefused) {
  for (const char* strategy : {"replicate", "zero1", "zero2", "fsdp", "hybrid"}) {
    for (const char* device : {"cpu", "gpu"}) {
      for (const char* offload : {"false", "true"}) {
        const auto settings =
            settings_from_answers(gpu_server(), {{"device", device},
                                                 {"num_machines", "2"},
                                                 {"main_process_ip", "n0"},
                                                 {"strategy", strategy},
                                                 {"offload", offload},
                                                 {"fsdp_activation_checkpointing", offload}});
        for (const auto& setting : settings.all()) {
          EXPECT_NE(find_key(setting.key), nullptr) << setting.key;
        }
        const auto translation = translate(settings);
        for (const auto& entry : translation.ledger) {
          EXPECT_NE(entry.verdict, Verdict::refused)
              << strategy << " on " << device << ": " << entry.setting.key << ": " << entry.note;
        }
        EXPECT_EQ(translation.launch.num_machines, 2);
      }
    }
  }
}

TEST(Settings, BasicOnesAreOneProcessOrOnePerGpu) {
  const auto on_cpu = basic_settings(laptop().machine, "bf16");
  EXPECT_EQ(text_of(on_cpu, "distributed_type"), "NO");
  EXPECT_EQ(text_of(on_cpu, "num_processes"), "1");
  EXPECT_EQ(text_of(on_cpu, "use_cpu"), "true");
  EXPECT_EQ(text_of(on_cpu, "mixed_precision"), "bf16");
  const auto on_gpus = basic_settings(gpu_server().machine, "no");
  EXPECT_EQ(text_of(on_gpus, "distributed_type"), "MULTI_GPU");
  EXPECT_EQ(text_of(on_gpus, "num_processes"), "4");
  EXPECT_EQ(text_of(on_gpus, "use_cpu"), "false");
}

TEST(Settings, CompletingKeepsWhatIsThere) {
  Settings old;
  old.set({.key = "distributed_type", .value = "NO"});
  old.set({.key = "rdzv_backend", .value = "c10d"});
  complete(old);
  EXPECT_EQ(text_of(old, "rdzv_backend"), "c10d");
  EXPECT_EQ(text_of(old, "num_processes"), "1");
  EXPECT_EQ(text_of(old, "main_training_function"), "main");
  EXPECT_EQ(text_of(old, "mixed_precision"), "-");
  Settings several;
  several.set({.key = "distributed_type", .value = "MULTI_GPU"});
  complete(several);
  EXPECT_EQ(text_of(several, "num_processes"), "-");
}

}  // namespace
}  // namespace tessera::config::accelerate
