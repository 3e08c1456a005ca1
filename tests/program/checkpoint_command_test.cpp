// `tessera checkpoint` as a user runs it, on small checkpoints.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/write_checkpoint.h"
#include "tessera/data/testing.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::testing::MemorySource;
using checkpoint::testing::read_all;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

/// A model of two tensors and its optimizer.
MemorySource small_source() {
  MemorySource source;
  for (const char* prefix : {"", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
    source.add_counting(std::string(prefix) + "embed.weight", {300, 7});
    source.add_counting(std::string(prefix) + "norm.weight", {5});
  }
  return source;
}

class CheckpointCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::current_path(folder_.path());
    save("run/checkpoints/step_00000010", 10);
  }
  void TearDown() override { fs::current_path(before_); }

  static void save(const fs::path& path, int64_t step) {
    std::ofstream("tokenizer.json") << R"({"vocab": {}})";
    checkpoint::write_checkpoint(
        small_source(), path,
        {.about = {.step = step,
                   .layout = {{"num_ranks", 2}},
                   .state = {{"step", step}, {"optimizer", {{"type", "adamw"}, {"step", step}}}},
                   .model = {{"model_type", "llama"}, {"vocab_size", 300}}},
         .validation_loss = 2.5,
         .assets = {"tokenizer.json"},
         .num_files = 2});
  }

  static void flip(const fs::path& file, int64_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 16);
    stream.seekp(at).put(byte);
  }

  /// What it prints; nothing on standard error.
  static std::string run(Arguments arguments, int exit_code = 0) {
    arguments.insert(arguments.begin(), "checkpoint");
    const auto end = run_tessera(arguments);
    EXPECT_EQ(end.exit_code, exit_code) << end.error;
    EXPECT_EQ(end.error, "");
    return end.out;
  }

  static std::set<std::string> files() {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(".")) names.insert(entry.path());
    return names;
  }

  /// `line`: a regular expression for what stands behind "tessera: "; nothing is left behind.
  static void expect_refusal(Arguments arguments, const std::string& line,
                             int exit_code = kUserErrorExit) {
    const auto before = files();
    arguments.insert(arguments.begin(), "checkpoint");
    const auto end = run_tessera(arguments);
    EXPECT_EQ(end.exit_code, exit_code);
    EXPECT_THAT(end.error, MatchesRegex("tessera: " + line + "\n"));
    EXPECT_EQ(std::count(end.error.begin(), end.error.end(), '\n'), 1) << end.error;
    EXPECT_EQ(end.out, "");
    EXPECT_EQ(files(), before);
  }

  const std::string fixtures_ = (fs::current_path() / "tests/fixtures").string();
  const std::string step_ = "run/checkpoints/step_00000010";
  tessera::testing::TemporaryFolder folder_;
  fs::path before_ = fs::current_path();
};

TEST_F(CheckpointCommandTest, VerifyNamesWhatIsDamaged) {
  const std::string good = step_ + ": ok: step 10, 6 tensors, 32.7 KiB in 3 files\n";
  EXPECT_EQ(run({"verify", step_}), good);
  EXPECT_EQ(run({"verify", "run/checkpoints"}), good);
  save("run/checkpoints/step_00000020", 20);
  save("run/checkpoints/step_00000030", 30);
  EXPECT_EQ(std::ranges::count(run({"verify", "run"}), '\n'), 3);

  flip("run/checkpoints/step_00000020/shard_00001.safetensors", 5000);
  fs::remove("run/checkpoints/step_00000030/complete.json");
  fs::create_directory("run/checkpoints/step_00000040.partial");
  EXPECT_THAT(
      run({"verify", "run"}, 2),
      MatchesRegex(
          "run/checkpoints/step_00000010: ok: [^\n]+\n"
          "run/checkpoints/step_00000020/shard_00001.safetensors: damaged: bytes 0 to [0-9]+ "
          "have another checksum than when they were written\n"
          "run/checkpoints/step_00000030: not complete: expected complete.json in it, found none\n"
          "run/checkpoints/step_00000040.partial: unfinished: [^\n]+\n"));
  expect_refusal({"verify", "run/checkpoints/step_00000020"},
                 "run/checkpoints/step_00000020/shard_00001.safetensors: damaged: [^\n]+");
  fs::resize_file("run/checkpoints/step_00000010/tokenizer.json", 3);
  expect_refusal({"verify", step_}, step_ + "/tokenizer.json: truncated: expected 13 bytes, got 3");
}

TEST_F(CheckpointCommandTest, VerifyOfOtherFormats) {
  EXPECT_THAT(run({"verify", fixtures_ + "/llama_micro_sharded"}),
              HasSubstr("llama_micro_sharded: well-formed safetensors: "));
  EXPECT_THAT(run({"verify", fixtures_ + "/dcp_micro/optimizer_0"}),
              HasSubstr("well-formed torch.distributed.checkpoint: "));
  folder_.write("hf/model.safetensors", "short");
  expect_refusal({"verify", "hf"}, "hf/model.safetensors: truncated: [^\n]+");
}

TEST_F(CheckpointCommandTest, Inspect) {
  const auto text = run({"inspect", step_});
  EXPECT_THAT(text, StartsWith(step_ + ": Tessera checkpoint\n"));
  for (const char* line :
       {"step             10\n", "validation loss  2.5\n", "tensors          6 (F32 6), 24.7 KiB\n",
        "optimizer        exp_avg 2, exp_avg_sq 2\n", "written by       num_ranks 2\n",
        "state            optimizer (step 10, type adamw), step 10\n", "model            llama\n",
        "  shard_00001.safetensors  16.3 KiB\n", "  tokenizer.json  13 B\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(run({"inspect", "run"}), text);
  EXPECT_THAT(run({"inspect", step_, "--tensors"}),
              HasSubstr("  norm.weight: F32 [5], 20 B: elements 0 to 4 in shard_0000"));
  const auto about = json::parse(run({"inspect", step_, "--json", "--tensors"}));
  EXPECT_EQ(about["step"], 10);
  EXPECT_EQ(about["num_parameters"], 2105);
  EXPECT_EQ(about["tensors"]["embed.weight"]["shape"], json({300, 7}));
  EXPECT_EQ(about["tensors"]["embed.weight"]["ranges"][0]["begin"], 0);
  EXPECT_THAT(run({"inspect", fixtures_ + "/gpt2_micro", "--tensors"}),
              HasSubstr("ln_f.weight: F32 ["));
}

TEST_F(CheckpointCommandTest, Diff) {
  EXPECT_EQ(run({"diff", step_, step_}), "equal: 6 tensors\n");
  MemorySource other;
  other.add_counting("embed.weight", {300, 7});
  other.add_counting("norm.weight", {6});
  checkpoint::write_checkpoint(other, "other", {});
  EXPECT_EQ(
      run({"diff", step_, "other", "--parameters-only"}, 1),
      "norm.weight: F32 [5] and F32 [6]\n"
      "different: 1 tensors differ (by at most 0), 0 and 0 stand in one alone, 1 are equal\n");
  EXPECT_THAT(run({"diff", "other", step_}, 1),
              HasSubstr("optimizer/exp_avg/norm.weight: only in " + step_ + "\n"));
  MemorySource close;
  close.add("norm.weight", checkpoint::DType::f32, {3}, std::vector<float>{1, 2, 3});
  checkpoint::write_checkpoint(close, "a", {});
  close.add("norm.weight", checkpoint::DType::f32, {3}, std::vector<float>{1, 2.25, 3.5});
  checkpoint::write_checkpoint(close, "b", {});
  EXPECT_THAT(run({"diff", "a", "b"}, 1),
              StartsWith("norm.weight: 2 of 3 elements differ, by at most 0.5\n"));
  EXPECT_THAT(run({"diff", "a", "b", "--tolerance", "0.25"}, 1), HasSubstr("1 of 3 elements"));
  EXPECT_EQ(run({"diff", "a", "b", "--tolerance", "0.5"}), "equal: 1 tensors\n");
  expect_refusal({"diff", "a", "b", "--tolerance", "-1"},
                 "checkpoint: --tolerance: expected a number of 0 or more, got -1");
}

TEST_F(CheckpointCommandTest, ReshardAndMergeKeepEverything) {
  run({"reshard", step_, "-o", "out/three", "--shards", "3"});
  run({"merge", "out/three", "-o", "one"});
  run({"diff", step_, "one"});
  run({"verify", "one"});
  const Checkpoint before(step_), three("out/three"), one("one");
  EXPECT_EQ(three.index().files.size(), 4u);  // and the tokenizer
  EXPECT_EQ(one.index().files.size(), 2u);
  for (const auto* found : {&three, &one}) {
    EXPECT_EQ(found->index().step, 10);
    EXPECT_EQ(found->index().state, before.index().state);
    EXPECT_EQ(found->index().model, before.index().model);
    EXPECT_EQ(found->index().layout, before.index().layout);
    EXPECT_EQ(found->marker().validation_loss, 2.5);
  }
  // The files are of even size, but for their headers.
  for (size_t file = 0; file < 3; ++file) {
    EXPECT_NEAR(three.index().files[file].num_bytes, static_cast<double>(before.num_bytes()) / 3,
                5000);
  }
  EXPECT_EQ(checkpoint::Safetensors("one/shard_00000.safetensors").tensors(), before.tensors());

  run({"merge", step_, "-o", "plain.safetensors", "--parameters-only"});
  const checkpoint::SafetensorsFile plain("plain.safetensors");
  EXPECT_EQ(plain.tensors().size(), 2u);
  EXPECT_TRUE(read_all(plain, "embed.weight") == read_all(before, "embed.weight"));
  EXPECT_EQ(plain.metadata().at("step"), "10");
  run({"merge", step_, "-o", "parameters", "--parameters-only"});
  EXPECT_EQ(Checkpoint("parameters").index().state, json({{"step", 10}}));
}

TEST_F(CheckpointCommandTest, ToHuggingFaceAndBack) {
  run({"convert", step_, "-o", "hf", "--to", "huggingface", "--max-shard-size", "5KB"});
  EXPECT_TRUE(fs::exists("hf/model.safetensors.index.json"));
  EXPECT_EQ(read_file("hf/tokenizer.json"), R"({"vocab": {}})");
  EXPECT_EQ(json::parse(read_file("hf/config.json"))["vocab_size"], 300);
  EXPECT_EQ(run({"diff", step_, "hf", "--parameters-only"}), "equal: 2 tensors\n");
  run({"convert", "hf", "-o", "back", "--to", "tessera", "--step", "10"});
  EXPECT_EQ(run({"diff", "hf", "back"}), "equal: 2 tensors\n");
  const Checkpoint back("back");
  EXPECT_EQ(back.index().step, 10);
  EXPECT_EQ(back.index().state, json({{"step", 10}}));
  EXPECT_EQ(back.index().model["model_type"], "llama");
  EXPECT_TRUE(fs::exists("back/tokenizer.json"));
  run({"convert", step_, "-o", "bf16", "--to", "huggingface", "--dtype", "bf16"});
  EXPECT_EQ(checkpoint::Safetensors("bf16").info("norm.weight").dtype, checkpoint::DType::bf16);
}

TEST_F(CheckpointCommandTest, NumbersBeyondF16AreRefused) {
  run({"convert", step_, "-o", "large", "--to", "huggingface", "--dtype", "fp32"});
  const float number = 1e8F;
  std::fstream stream("large/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-4, std::ios::end).write(reinterpret_cast<const char*>(&number), 4);
  stream.close();
  expect_refusal({"convert", "large", "-o", "half", "--to", "huggingface", "--dtype", "fp16"},
                 ".*: holds 1e\\+08, which f16 cannot; choose bf16, or 32 bits");
  run({"convert", "large", "-o", "brain", "--to", "huggingface", "--dtype", "bf16"});
}

TEST_F(CheckpointCommandTest, ADenseModelBecomesAMixture) {
  const auto dense = fixtures_ + "/llama_micro";
  run({"convert", dense, "-o", "mixture", "--to", "huggingface", "--upcycle", "3"});
  const auto config = json::parse(read_file("mixture/config.json"));
  EXPECT_EQ(config["model_type"], "mixtral");
  EXPECT_EQ(config["num_local_experts"], 3);
  EXPECT_EQ(config["num_experts_per_tok"], 2);
  const auto refused = [&](const Arguments& options, const std::string& message) {
    Arguments command{"convert", dense, "-o", "none"};
    command.insert(command.end(), options.begin(), options.end());
    expect_refusal(command, message);
  };
  refused({"--to", "llmc", "--upcycle", "3"},
          "checkpoint: --upcycle takes effect with --to huggingface or tessera alone");
  refused({"--to", "huggingface", "--experts-per-token", "2"},
          "checkpoint: --experts-per-token takes effect with --upcycle alone");
  refused({"--to", "huggingface", "--upcycle", "1"},
          "--upcycle: expected 2 to 4096 experts, got 1");
}

TEST_F(CheckpointCommandTest, FromDistributedCheckpoints) {
  const auto dcp = fixtures_ + "/dcp_micro";
  run({"convert", dcp, "-o", "all", "--to", "tessera", "--config", fixtures_ + "/llama_micro"});
  run({"convert", dcp + "/pytorch_model_fsdp_0", "-o", "two", "--to", "tessera", "--optimizer",
       dcp + "/optimizer_0"});
  const Checkpoint all("all");
  EXPECT_EQ(run({"diff", "all", "two"}),
            "equal: " + std::to_string(all.tensors().size()) + " tensors\n");
  EXPECT_EQ(all.index().step, 5);
  EXPECT_EQ(all.index().state["optimizer"], json({{"type", "adamw"}, {"step", 5}}));
  EXPECT_EQ(all.index().model["model_type"], "llama");
  const auto weights = checkpoint::Safetensors(fixtures_ + "/llama_micro").tensors();
  EXPECT_EQ(all.tensors().size(), 3 * weights.size());
  for (const auto& [name, info] : weights) {
    EXPECT_EQ(all.info(name), info);
    EXPECT_EQ(all.info("optimizer/exp_avg/" + name).shape, info.shape);
    EXPECT_EQ(all.info("optimizer/exp_avg_sq/" + name).shape, info.shape);
  }
  EXPECT_EQ(run({"diff", dcp, "all"}), run({"diff", "all", "two"}));
  EXPECT_EQ(run({"diff", dcp + "/pytorch_model_fsdp_0", "all", "--parameters-only"}),
            "equal: " + std::to_string(weights.size()) + " tensors\n");
}

TEST_F(CheckpointCommandTest, FromDeepspeed) {
  run({"convert", fixtures_ + "/deepspeed_universal", "-o", "all", "--to", "tessera"});
  const Checkpoint all("all");
  EXPECT_EQ(all.index().step, 4);
  EXPECT_EQ(all.tensors().size(), 6u);
  EXPECT_EQ(all.info("optimizer/exp_avg/weight"), all.info("weight"));
}

TEST_F(CheckpointCommandTest, Gpt2ToLlmcAndBack) {
  run({"convert", fixtures_ + "/gpt2_micro", "-o", "gpt2", "--to", "tessera"});
  run({"convert", "gpt2", "-o", "gpt2.bin", "--to", "llmc"});
  run({"convert", "gpt2.bin", "-o", "back", "--to", "tessera"});
  EXPECT_THAT(run({"diff", "gpt2", "back"}), StartsWith("equal: "));
  EXPECT_TRUE(Checkpoint("gpt2").contains("transformer.wte.weight"));
  EXPECT_FALSE(Checkpoint("gpt2").contains("lm_head.weight"));
  expect_refusal({"convert", step_, "-o", "x.bin", "--to", "llmc"},
                 step_ +
                     ": expected a gpt2, which is all that llm.c's checkpoints hold, got "
                     "model_type \"llama\"");
  expect_refusal({"convert", "gpt2", "-o", "x.bin", "--to", "llmc", "--dtype", "fp16"},
                 "x.bin: llm.c's checkpoints hold F32 or BF16, got F16");
}

TEST_F(CheckpointCommandTest, WhatIsNoCheckpoint) {
  expect_refusal({"inspect", "absent"}, "absent: no such file or folder");
  expect_refusal({"verify", "tokenizer.json"},
                 "tokenizer.json: no checkpoint; expected a folder with complete.json, [^\n]+");
  expect_refusal({"inspect", "."}, ".: no checkpoint; expected [^\n]+");
  fs::create_directory("elsewhere");
  write_file("elsewhere/config.yaml", "model: {preset: micro}\n");
  expect_refusal({"inspect", "elsewhere"},
                 "elsewhere: a run with no checkpoints in it; name the folder where it keeps them, "
                 "if its config\\.yaml says another one, or a checkpoint");
  expect_refusal({"diff", "run", step_},
                 "run: expected one checkpoint, got a folder of 1; name one, the last is " + step_);
  expect_refusal({"inspect", fixtures_ + "/dcp_micro"},
                 "[^ ]+: expected one folder of torch.distributed.checkpoint, got two; [^\n]+");
  expect_refusal({"reshard", fixtures_ + "/llama_micro", "-o", "x", "--shards", "2"},
                 "[^ ]+: expected a checkpoint of Tessera, got safetensors; see tessera checkpoint "
                 "convert");
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  expect_refusal({"inspect", "pipe"}, "pipe: no checkpoint; [^\n]+");
}

TEST_F(CheckpointCommandTest, WhatExistsIsNotOverwritten) {
  for (const char* to : {"huggingface", "tessera", "llmc"}) {
    expect_refusal({"convert", step_, "-o", "run/", "--to", to},
                   "run/?: exists; remove it or choose another name to write to");
  }
  expect_refusal({"reshard", step_, "-o", "run", "--shards", "1"}, "run: exists; [^\n]+");
  expect_refusal({"merge", step_, "-o", "tokenizer.json"}, "tokenizer.json: exists; [^\n]+");
}

TEST_F(CheckpointCommandTest, MistakesInTheCommand) {
  expect_refusal({"verfiy", step_},
                 "unknown command or option 'verfiy'; did you mean 'verify'\\?; [^\n]+");
  expect_refusal({}, "A subcommand is required; see tessera --help");
  expect_refusal({"convert", step_, "-o", "x", "--to", "hugginface"},
                 "checkpoint: --to: expected huggingface, tessera, llmc, got 'hugginface'; did you "
                 "mean 'huggingface'\\?");
  expect_refusal({"convert", step_, "-o", "x", "--to", "tessera", "--dtype", "bf61"},
                 "checkpoint: --dtype: expected bf16, fp16, fp32, got 'bf61'; did you mean "
                 "'bf16'\\?");
  expect_refusal({"convert", step_, "-o", "x", "--to", "huggingface", "--step", "3"},
                 "checkpoint: --step takes effect with --to tessera alone");
  expect_refusal({"convert", step_, "-o", "x", "--to", "tessera", "--max-shard-size", "much"},
                 "--max-shard-size: [^\n]+");
  for (const char* number : {"0", "-1", "1000000"}) {
    expect_refusal(
        {"reshard", step_, "-o", "x", "--shards", number},
        step_ + ": expected 1 to 6 files \\(a page of 4096 bytes each\\), got " + number);
  }
  expect_refusal({"convert", fixtures_ + "/dcp_micro", "-o", "x", "--to", "huggingface"},
                 "[^ ]+: its model is unknown, as no config.json is with it; put one beside it, or "
                 "give it to tessera checkpoint convert with --config");
}

TEST_F(CheckpointCommandTest, DamageStopsEveryCommand) {
  flip(step_ + "/shard_00000.safetensors", 6000);
  const auto line = step_ + "/shard_00000.safetensors: damaged: bytes 0 to [^\n]+";
  expect_refusal({"reshard", step_, "-o", "x", "--shards", "2"}, line);
  expect_refusal({"convert", step_, "-o", "x", "--to", "huggingface"}, line);
  expect_refusal({"diff", step_, step_}, line);
}

TEST_F(CheckpointCommandTest, NamesThatLeadOutside) {
  auto index = json::parse(read_file(step_ + "/index.json"));
  index["files"][0]["name"] = "../../shard_00000.safetensors";
  const auto text = index.dump();
  write_file(step_ + "/index.json", text);
  write_file(step_ + "/complete.json",
             checkpoint::format_marker({.step = 10, .index_checksum = checkpoint::checksum(text)}));
  expect_refusal({"verify", step_},
                 step_ +
                     "/index.json: files\\[0\\]: name: expected a file of this folder, got "
                     "\"../../shard_00000.safetensors\"");
  folder_.write("hf/model.safetensors.index.json",
                R"({"weight_map": {"a": "../run/x.safetensors"}})");
  expect_refusal({"verify", "hf"},
                 "hf/model.safetensors.index.json: expected shards in its own "
                 "folder, got \"../run/x.safetensors\"");
}

}  // namespace
}  // namespace tessera
