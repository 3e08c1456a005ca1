#include "tessera/config/accelerate/settings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/config/accelerate/keys.h"

namespace tessera::config::accelerate {
namespace {

using tessera::testing::message_of;

/// Runs in a folder of its own, so that messages show "a.yaml" alone.
class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = std::filesystem::current_path();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("settings_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(home_);
    std::filesystem::remove_all(folder_);
  }

  static Settings read(const std::string& text) {
    write_file("a.yaml", text);
    return read_settings("a.yaml");
  }
  static std::string error_of(const std::string& text) {
    return message_of([&] { read(text); });
  }

 private:
  std::filesystem::path home_, folder_;
};

TEST_F(SettingsTest, PrefixesMayBeLeftOutAndCaseDoesNotCount) {
  const auto settings = read(
      "distributed_type: fsdp\nmixed_precision: BF16\nnum_processes: 2\n"
      "fsdp_config:\n  version: 2\n  fsdp_offload_params: 'yes'\n  min_num_params: 1e8\n"
      "parallelism_config: {dp_shard_size: 2}\n"
      "fp8_config: {backend: te, fp8_format: e4m3}\n"
      "deepspeed_config: {hostfile: hosts, gradient_clipping: 1.0}\n");
  EXPECT_EQ(settings.text("distributed_type"), "FSDP");
  EXPECT_EQ(settings.text("mixed_precision"), "bf16");
  EXPECT_EQ(settings.integer("fsdp_config.fsdp_version"), 2);
  EXPECT_TRUE(settings.flag("fsdp_config.offload_params"));
  EXPECT_EQ(settings.text("fsdp_config.fsdp_min_num_params"), "100000000");
  EXPECT_EQ(settings.find("parallelism_config.dp_shard_size")->origin, "a.yaml:8");
  EXPECT_EQ(settings.text("fp8_config.fp8_backend"), "TE");
  EXPECT_EQ(settings.text("deepspeed_config.deepspeed_hostfile"), "hosts");
  EXPECT_EQ(settings.number("deepspeed_config.gradient_clipping"), 1);
}

TEST_F(SettingsTest, DefaultsStandWhereNothingIsSaid) {
  const auto settings = read("distributed_type: NO\n");
  EXPECT_EQ(settings.text("distributed_type"), "NO");  // not YAML 1.1's false
  EXPECT_EQ(settings.integer("num_processes"), -1);
  EXPECT_EQ(settings.text("mixed_precision"), "no");
  EXPECT_FALSE(settings.flag("debug"));
  EXPECT_EQ(settings.find("num_machines"), nullptr);
}

TEST_F(SettingsTest, JsonTextUnderAnyName) {
  const auto settings = read(
      "{\n  \"compute_environment\": \"LOCAL_MACHINE\",\n  \"debug\": false,\n"
      "  \"distributed_type\": \"NO\",\n  \"num_processes\": 1,\n  \"main_process_port\": null,\n"
      "  \"fsdp_config\": {\"fsdp_min_num_params\": 1e8}\n}\n");
  EXPECT_EQ(settings.find("debug")->value, "false");
  EXPECT_EQ(settings.find("main_process_port"), nullptr);
  EXPECT_EQ(settings.find("num_processes")->origin, "a.yaml:5");
  EXPECT_EQ(settings.integer("fsdp_config.min_num_params"), 100000000);
}

TEST_F(SettingsTest, OldNamesBecomeTheirPresentOnes) {
  EXPECT_EQ(read("distributed_type: NO\nfp16: true\n").text("mixed_precision"), "fp16");
  EXPECT_EQ(read("distributed_type: NO\nfp16: false\n").text("mixed_precision"), "no");
  EXPECT_EQ(
      read("fp16: false\nmixed_precision: bf16\ndistributed_type: NO\n").text("mixed_precision"),
      "bf16");
  EXPECT_EQ(error_of("distributed_type: NO\nfp16: true\nmixed_precision: bf16\n"),
            "a.yaml:2: fp16: true contradicts mixed_precision: bf16 (a.yaml:3); remove fp16");
  const auto settings = read(
      "distributed_type: NO\ndynamo_backend: INDUCTOR\n"
      "fp8_config: {amax_history_length: 16, amax_compute_algorithm: max, optimization_level: "
      "O1}\n");
  EXPECT_EQ(settings.text("dynamo_config.dynamo_backend"), "INDUCTOR");
  EXPECT_EQ(settings.integer("fp8_config.fp8_amax_history_len"), 16);
  EXPECT_EQ(settings.text("fp8_config.amax_compute_algo"), "max");
  EXPECT_EQ(settings.text("fp8_config.opt_level"), "O1");
}

TEST_F(SettingsTest, ListsInAnyWriting) {
  for (const auto* list : {"[false, false, true]", "(false, false, true)", "'false,false,true'",
                           "\n  - false\n  - false\n  - true"}) {
    EXPECT_EQ(read(std::string("distributed_type: NO\nfp8_config:\n  override_linear_precision: ") +
                   list + "\n")
                  .text("fp8_config.override_linear_precision"),
              "[false, false, true]")
        << list;
  }
}

TEST_F(SettingsTest, StrategiesMayBeNumbers) {
  const auto settings = read(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\n"
      "  fsdp_backward_prefetch: 1\n  fsdp_state_dict_type: 3\n  fsdp_reshard_after_forward: 4\n");
  EXPECT_EQ(settings.text("fsdp_config.sharding_strategy"), "SHARD_GRAD_OP");
  EXPECT_EQ(settings.text("fsdp_config.backward_prefetch"), "BACKWARD_PRE");
  EXPECT_EQ(settings.text("fsdp_config.state_dict_type"), "SHARDED_STATE_DICT");
  EXPECT_EQ(settings.text("fsdp_config.reshard_after_forward"), "HYBRID_SHARD");
}

TEST_F(SettingsTest, BadFiles) {
  EXPECT_EQ(error_of(""),
            "a.yaml: the file is empty; expected Accelerate's keys, such as distributed_type");
  EXPECT_EQ(error_of("- a\n"), "a.yaml:1: expected Accelerate's 'key: value' lines, got a list");
  EXPECT_EQ(
      error_of("debug: false\n"),
      "a.yaml: distributed_type is missing; set it to NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config: [\n"),
            "a.yaml:3: expected YAML: end of sequence flow not found (column 1)");
  EXPECT_EQ(message_of([] { read_settings("absent.yaml"); }),
            "absent.yaml: cannot be opened: No such file or directory");
}

TEST_F(SettingsTest, UnknownKeysAtAnyDepth) {
  EXPECT_EQ(
      error_of("distributed_type: NO\nmixed_precison: no\nanother: 1\n"),
      "a.yaml:2: the config file had unknown keys ('another', 'mixed_precison'); correct or remove "
      "them; did you mean 'mixed_precision'?");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategi: 1\n"),
            "a.yaml:3: unknown key 'fsdp_config.fsdp_sharding_strategi'; did you mean "
            "'fsdp_sharding_strategy'?");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config:\n  offload_parms: true\n"),
            "a.yaml:3: unknown key 'fsdp_config.offload_parms'; did you mean 'offload_params'?");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_version: 2\n"),
            "a.yaml:2: the config file had unknown keys ('fsdp_version'); correct or remove them; "
            "'fsdp_version' belongs below fsdp_config");
  EXPECT_EQ(
      error_of("distributed_type: FSDP\nfsdp_config:\n  num_processes: 2\n"),
      "a.yaml:3: unknown key 'fsdp_config.num_processes'; 'num_processes' belongs at the top");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config:\n  <<: {version: 2}\n"),
            "a.yaml:3: unknown key 'fsdp_config.<<'; merging is not read: write the keys out");
  EXPECT_EQ(error_of("fsdp_config: {version: 2}\ndistributed_type: FSDP\nfsdp_config:\n"),
            "a.yaml:3: 'fsdp_config' is given twice; put its keys below that of a.yaml:1");
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config: 2\n"),
            "a.yaml:2: fsdp_config: expected 'key: value' lines below it, got '2'");
}

TEST_F(SettingsTest, BadValues) {
  const auto one = [](const std::string& line) {
    return error_of("distributed_type: NO\n" + line);
  };
  EXPECT_EQ(one("num_processes: -4\n"),
            "a.yaml:2: num_processes: expected a whole number in [1, 65536], or -1, got '-4'");
  EXPECT_EQ(one("num_processes: 1e9\n"),
            "a.yaml:2: num_processes: expected a whole number in [1, 65536], or -1, got '1e9'");
  EXPECT_EQ(one("main_process_port: 70000\n"),
            "a.yaml:2: main_process_port: expected a whole number in [0, 65535], got '70000'");
  EXPECT_EQ(one("debug: perhaps\n"), "a.yaml:2: debug: expected true or false, got 'perhaps'");
  EXPECT_EQ(one("mixed_precision: bf61\n"),
            "a.yaml:2: mixed_precision: expected one of no, fp16, bf16, fp8, got 'bf61'; did you "
            "mean 'bf16'?");
  const std::string text = "expected a text on one line, UTF-8 of at most 4096 bytes, got ";
  EXPECT_EQ(one("gpu_ids: [0, 1]\n"), "a.yaml:2: gpu_ids: " + text + "a list");
  EXPECT_EQ(one("tpu_name: \"a\\nb\"\n"), "a.yaml:2: tpu_name: " + text + "'a\\nb'");
  EXPECT_EQ(one("tpu_name: a\xff\n"), "a.yaml:2: tpu_name: " + text + "'a\xff'");
  for (const auto* broken : {"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    EXPECT_NE(one(std::string("tpu_name: ") + broken + "\n"), "no error");
  }
  EXPECT_EQ(one("tpu_name: \"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"\n"), "no error");
  EXPECT_EQ(one("tpu_name: " + std::string(4096, 'x') + "\n"), "no error");
  EXPECT_EQ(one("tpu_name: " + std::string(5000, 'x') + "\n"),
            "a.yaml:2: tpu_name: " + text + "'" + std::string(60, 'x') + "...'");
  EXPECT_EQ(one("tpu_env: [a, \"b\\nc\"]\n"),
            "a.yaml:2: tpu_env: expected a list such as [a, b], of texts on one line, got 'b\\nc'");
  EXPECT_EQ(one("deepspeed_config: {zero_stage: 4}\n"),
            "a.yaml:2: deepspeed_config.zero_stage: expected one of 0, 1, 2, 3, got '4'");
  EXPECT_EQ(one("debug: true\ndebug: false\n"),
            "a.yaml:3: 'debug' is given twice; keep this one or that of a.yaml:2");
  EXPECT_EQ(one("debug: true\ndebug: true\n"), "no error");  // a file of Accelerate's own tests
}

TEST_F(SettingsTest, WrittenFilesReadBackTheSame) {
  const auto settings = read(
      "distributed_type: NO\nmixed_precision: 'no'\nmain_process_ip: null\nmain_process_port: 0\n"
      "gpu_ids: '0,1'\nnum_processes: 1\ntpu_env: [A=1, B]\ndowncast_bf16: 'no'\n"
      "commands: ['echo {a', \"it's, [b]\", '', 'null', 'a: b']\ntpu_vm: [\"-\", 'x # y']\n"
      "command_file: \"it's: #1\"\nregion: eu-west-1\n"
      "fsdp_config: {fsdp_min_num_params: 5, offload_params: true, ignored_modules: 'a.*'}\n"
      "deepspeed_config: {gradient_clipping: 0.5}\n");
  const auto text = to_yaml(settings);
  EXPECT_NE(text.find("distributed_type: 'NO'\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdp_config:\n  fsdp_min_num_params: 5\n"), std::string::npos) << text;
  const auto again = read(text);
  ASSERT_EQ(again.all().size(), settings.all().size()) << text;
  for (const auto& setting : settings.all()) {
    if (setting.is_null) {
      EXPECT_EQ(again.find(setting.key), nullptr) << setting.key;
    } else {
      EXPECT_EQ(again.text(setting.key), setting.value) << setting.key;
    }
  }
}

TEST(KeysTest, EveryKeyIsFoundByItsNameWithAndWithoutPrefix) {
  for (const auto& key : keys()) {
    EXPECT_EQ(find_key(key.dotted()), &key);
    const auto prefix = section_prefix(key.section);
    if (key.section.empty() || !key.name.starts_with(prefix)) continue;
    EXPECT_EQ(find_key(key.section + "." + key.name.substr(prefix.size())), &key);
  }
  EXPECT_EQ(find_key("fsdp_config"), nullptr);
  EXPECT_EQ(find_key("none.such"), nullptr);
}

TEST(KeysTest, OptionsAndVariablesAreNotSharedByTwoKeys) {
  std::map<std::string, std::string> seen;
  for (const auto& key : keys()) {
    for (const auto& name : {key.option, key.variable}) {
      if (!name.empty()) {
        EXPECT_TRUE(seen.emplace(name, key.dotted()).second) << name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::config::accelerate
