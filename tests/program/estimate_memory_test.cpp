// `tessera estimate-memory` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tests/program/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ProgramEnd estimate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "estimate-memory");
  return run_tessera(arguments, {.environment = {{"HF_HUB_OFFLINE", "1"}}});
}

nlohmann::json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const auto end = estimate(std::move(arguments));
  EXPECT_EQ(end.exit_code, 0) << end.error;
  return nlohmann::json::parse(end.out, nullptr, /*allow_exceptions=*/false);
}

TEST(EstimateMemory, BertBaseIsBothTablesAndNoMore) {
  const auto end = estimate({"bert-base-cased", "--dtypes", "float32", "float16"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.error, "");
  EXPECT_EQ(end.out, R"(┌────────────────────────────────────────────────────┐
│     Memory Usage for loading `bert-base-cased`     │
├───────┬─────────────┬──────────┬───────────────────┤
│ dtype │Largest Layer│Total Size│Training using Adam│
├───────┼─────────────┼──────────┼───────────────────┤
│float32│   86.47 MB  │413.18 MB │      1.61 GB      │
│float16│   43.23 MB  │206.59 MB │     826.36 MB     │
└───────┴─────────────┴──────────┴───────────────────┘
┌──────────────────────────────────────────────────────────────────┐
│        Training `bert-base-cased` with Adam, batch size 1        │
├───────┬─────────┬─────────┬─────────────┬──────────────┬─────────┤
│ dtype │  Model  │Gradients│Backward pass│Optimizer step│ Highest │
├───────┼─────────┼─────────┼─────────────┼──────────────┼─────────┤
│float32│413.18 MB│413.18 MB│  826.36 MB  │   1.61 GB    │ 1.61 GB │
│float16│413.18 MB│619.77 MB│  826.36 MB  │  826.36 MB   │826.36 MB│
└───────┴─────────┴─────────┴─────────────┴──────────────┴─────────┘
)");
}

TEST(EstimateMemory, SaysWhoseRotaryTablesCount) {
  const auto then = estimate({"meta-llama/Meta-Llama-3-8B"});
  EXPECT_THAT(then.out, HasSubstr("│float32│   1.96 GB   │ 28.21 GB │"));
  EXPECT_THAT(then.out, HasSubstr("there are none: 27.96 GB instead of 28.21 GB"));
  const auto now = estimate({"meta-llama/Meta-Llama-3-8B", "--transformers", "5.0"});
  EXPECT_THAT(now.out, HasSubstr("│ 27.96 GB │"));
  EXPECT_THAT(now.out, Not(HasSubstr("28.21")));
}

TEST(EstimateMemory, ReadsConfigurationsAndHeaders) {
  const auto folder = json_of({"tests/fixtures/llama_micro"});
  EXPECT_EQ(folder["rank"]["ranks"], 1);
  const auto file = json_of({"tests/fixtures/llama_micro/config.json"});
  EXPECT_EQ(file["total_bytes"], folder["total_bytes"]);
  // Stored with the head, which AutoModel leaves out, and without the two rotary vectors.
  const auto stored = json_of({"tests/fixtures/llama_micro/model.safetensors"});
  EXPECT_EQ(stored["total_bytes"], folder["total_bytes"].get<int64_t>() + 256 * 64 * 4 - 16 * 4);
  EXPECT_EQ(stored["largest_layer_bytes"], folder["largest_layer_bytes"]);
  EXPECT_TRUE(stored["rank"].is_null());
  const auto sharded = json_of({"tests/fixtures/llama_micro_sharded/model.safetensors.index.json"});
  EXPECT_EQ(sharded["total_bytes"], stored["total_bytes"]);
}

TEST(EstimateMemory, AJobIsItsOptions) {
  const auto job = json_of({"--job", "tests/integration/tiny_job.yaml"});
  const auto options = json_of({"micro", "--ranks", "2", "--batch-size", "2", "--seq-len", "64"});
  EXPECT_EQ(job["rank"], options["rank"]);
  const auto sharded =
      json_of({"--job", "tests/integration/tiny_job.yaml", "--placement", "full_shard"});
  EXPECT_LT(sharded["rank"]["peak_bytes"], job["rank"]["peak_bytes"]);
}

TEST(EstimateMemory, NamesTheChange) {
  const std::vector<std::string> run{"llama-3-8b", "--ranks",         "8",    "--precision",
                                     "bf16",       "--checkpointing", "full", "--seq-len",
                                     "4096",       "--device-memory"};
  auto small = run, large = run;
  small.emplace_back("80GB");
  large.emplace_back("400GB");
  const auto text = estimate(small).out;
  EXPECT_THAT(text, HasSubstr("does not fit the device (74.5 GiB)"));
  EXPECT_THAT(text, HasSubstr("one change makes it fit: parallel.placement=shard_optimizer"));
  EXPECT_EQ(json_of(large)["rank"]["fits"], true);
}

TEST(EstimateMemory, TakesAJobThatDividesMatricesAndLayers) {
  const auto job = ::testing::TempDir() + "estimate_divided.yaml";
  write_file(job, R"(
model: {preset: tiny, num_layers: 8}
data: {seq_len: 128}
parallel: {num_ranks: 16, pp: 4, tp: 2, placement: shard_optimizer, stage_layers: [2, 2, 2, 2]}
train: {global_batch: 16}
)");
  const auto end = estimate({"--job", job});
  EXPECT_EQ(end.exit_code, 0) << end.error;
  EXPECT_THAT(end.out, HasSubstr("The pipeline: 1F1B, 8 micro-batches"));
  EXPECT_THAT(end.out, HasSubstr("Of 16 ranks one with place 0 in the pipeline, in a step"));
  // 3 of 8 + 3 slots.
  EXPECT_THAT(end.out, HasSubstr("idle share of its ranks: 27.3 %"));

  const auto rank = json_of({"--job", job})["rank"];
  const auto& pipeline = rank["pipeline"];
  ASSERT_EQ(pipeline["ranks"].size(), 4);
  for (int place = 0; place < 4; ++place) {
    const auto& own = pipeline["ranks"][place];
    EXPECT_EQ(own["in_flight"], 4 - place);
    EXPECT_EQ(own["stages"], nlohmann::json({{2 * place, 2 * place + 2}}));
    EXPECT_LE(own["device_bytes"], rank["device_bytes"]);
    // Eight activations of 128 / 2 positions, each way.
    EXPECT_EQ(own["communication"]["pp"]["sent"], (place % 3 == 0 ? 1 : 2) * 8 * 128 * 256 * 4 / 2);
  }
  EXPECT_EQ(rank["communication"]["dp"]["ranks"], 2);
  EXPECT_GT(rank["communication"]["dp"]["reduce_scatter"], 0);
  EXPECT_EQ(rank["communication"]["tp"]["ranks"], 2);

  EXPECT_EQ(json_of({"gpt2", "--ranks", "12", "--tp", "12", "--seq-len", "480"})["rank"]["ranks"],
            12);
  const auto options = json_of({"tiny", "--ranks", "4", "--tp", "2", "--pp", "2"})["rank"];
  EXPECT_EQ(options["pipeline"]["micro_batches"], 8);
}

TEST(EstimateMemory, MistakesAreOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{}, "expected MODEL or --job, got neither"},
      {{"bert-base-casd"}, "did you mean 'bert-base-cased'?"},
      {{"tiny", "--placement", "full_shart"}, "did you mean 'full_shard'?"},
      {{"tiny", "--dtypes", "int9"}, "--dtypes: expected float32, float16, int8, int4, got 'int9'"},
      {{"tiny", "--ranks", "0"}, "--ranks: expected a whole number in [1, 1024], or -1, got '0'"},
      {{"tiny", "--batch-size", "0"},
       "--batch-size: expected a whole number from 1 to 1000000000, got 0"},
      {{"tiny", "--batch-size", "9999999999999"},
       "--batch-size: expected a whole number from 1 to 1000000000, got 9999999999999"},
      {{"llama-3-70b", "--batch-size", "1000000000", "--seq-len", "8192"},
       "1000000000 sequences of 8192 tokens at once take more bytes than can be counted"},
      {{"tiny", "--device-memory", "80"},
       "--device-memory: expected bytes with a unit, such as 80GB, got '80'"},
      {{"tiny", "--device-memory", "80XB"},
       "--device-memory: expected bytes with a unit, such as 80GB, got '80XB'"},
      {{"tiny", "--device-memory", "-3GB"},
       "--device-memory: expected bytes with a unit, such as 80GB, got '-3GB'"},
      {{"tiny", "--offload", "disk"},
       "--offload: expected none, optimizer, params, nvme, all_nvme, got 'disk'"},
      {{"llama-3-8b", "--ranks", "3", "--tp", "3", "--seq-len", "768"},
       "parallel.tp: 32 heads (8 of keys) cannot be divided over 3 ranks; set one of 1, 2, 4, 8"},
      {{"gpt2", "--ranks", "8", "--tp", "8"}, "parallel.tp: 12 heads (12 of keys) cannot be"},
      {{"llama-3-8b", "--ranks", "8", "--tp", "3"},
       "--tp: parallel.tp: the mesh has 6 ranks but the run has 8; set 2 or -1"},
      {{"llama-3-8b", "--ranks", "8", "--tp", "8", "--seq-len", "100"}, "data.seq_len"},
      {{"tiny", "--ranks", "8", "--pp", "8"},
       "parallel.pp: 4 layers cannot be divided over 8 stages (8 ranks, 1F1B); set fewer"},
      {{"gpt2", "--seq-len", "4096"}, "--seq-len: expected at most 1024"},
      {{"bert-base-cased", "--ranks", "2"}, "no formula for activations of bert"},
      {{"tiny", "--job", "tests/integration/tiny_job.yaml"}, "got both"},
      {{"tests/fixtures"}, "expected config.json or *.safetensors in tests/fixtures"},
      {{"someone/something"}, "not in the cache"}};
  for (const auto& [arguments, message] : mistakes) {
    expect_mistake(estimate(arguments), message);
  }
}

}  // namespace
}  // namespace tessera
