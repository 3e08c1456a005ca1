#include "tessera/checkpoint/formats/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using models::AdapterSpec;
using models::AdapterType;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::read_all;

models::ModelShape llama_micro() {
  return models::read_model_shape("tests/fixtures/llama_micro/config.json");
}

models::ModelShape phi3_shape() {
  const auto counts = nlohmann::json::parse(std::ifstream("tests/fixtures/adapters/counts.json"));
  return models::model_shape_of(counts["models"]["phi3"], "phi3");
}

class PeftTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  /// Tensors of all that is trained, of numbers that count.
  static MemorySource counting(const AdapterSpec& spec, const models::ModelShape& shape) {
    MemorySource source;
    for (const auto& p : models::trained_parameters(spec, shape)) {
      source.add_counting(p.name, p.shape);
    }
    return source;
  }

  std::string error_of_reading(const models::ModelShape& shape) {
    try {
      const PeftAdapter adapter(folder_, shape);
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }

  void change_config(const std::string& key, const nlohmann::json& value) {
    auto json = nlohmann::ordered_json::parse(read_file(folder_ / kPeftConfig));
    json[key] = value;
    write_file(folder_ / kPeftConfig, json.dump());
  }

  fs::path folder_ = fs::temp_directory_path() / "tessera_peft_test";
};

TEST_F(PeftTest, ReadsWhatPeftWrote) {
  const PeftAdapter adapter("tests/fixtures/lora_micro", llama_micro());
  const AdapterSpec expected{
      .type = AdapterType::lora, .rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}};
  EXPECT_EQ(adapter.config().spec, expected);
  EXPECT_EQ(adapter.config().base, "../llama_micro");
  EXPECT_EQ(adapter.tensors().tensors().size(), 8U);
  const SafetensorsFile stored("tests/fixtures/lora_micro/adapter_model.safetensors");
  EXPECT_EQ(read_all(adapter.tensors(), "model.layers.1.self_attn.v_proj.lora_B"),
            read_all(stored, "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"));
}

TEST_F(PeftTest, WritesWhatPeftWrote) {
  const PeftAdapter adapter("tests/fixtures/lora_micro", llama_micro());
  write_peft(adapter.tensors(), llama_micro(), folder_, {.config = adapter.config()});
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / kPeftConfig)),
            nlohmann::json::parse(read_file("tests/fixtures/lora_micro/adapter_config.json")));
  const SafetensorsFile ours(folder_ / kPeftWeights);
  const SafetensorsFile theirs("tests/fixtures/lora_micro/adapter_model.safetensors");
  EXPECT_EQ(ours.tensors(), theirs.tensors());
  for (const auto& [name, info] : theirs.tensors()) {
    EXPECT_EQ(read_all(ours, name), read_all(theirs, name)) << name;
  }
}

TEST_F(PeftTest, EverySettingComesBack) {
  const auto shape = llama_micro();
  AdapterSpec spec{.type = AdapterType::dora,
                   .rank = 4,
                   .alpha = 6,
                   .dropout = 0.25,
                   .rslora = true,
                   .targets = {"k_proj", "embed_tokens", "down_proj"},
                   .layers = {}};
  spec.rank_pattern = {{"model.layers.0.self_attn.k_proj", 2}};
  spec.alpha_pattern = {{"model.embed_tokens", 1.5}};
  spec.modules_to_save = {"norm", "lm_head"};
  spec.init = models::AdapterInit::gaussian;
  const auto trained = counting(spec, shape);
  write_peft(trained, shape, folder_,
             {.config = {.spec = spec, .base = "org/m", .revision = "v1"}});
  const PeftAdapter read(folder_, shape);
  EXPECT_EQ(read.config().base, "org/m");
  EXPECT_EQ(read.config().revision, "v1");
  EXPECT_EQ(read.config().spec.dropout, 0.25);
  EXPECT_EQ(read.config().spec.init, models::AdapterInit::gaussian);
  EXPECT_EQ(models::adapted_modules(read.config().spec, shape),
            models::adapted_modules(spec, shape));
  EXPECT_EQ(read.tensors().tensors(), trained.tensors());
  for (const auto& [name, info] : trained.tensors()) {
    EXPECT_EQ(read_all(read.tensors(), name), read_all(trained, name)) << name;
  }
}

/// Files of Phi-3 have one qkv_proj: the written adapter is one of the sum of ranks, and B A is the same.
TEST_F(PeftTest, PartsOfFusedModulesBecomeOneAdapter) {
  const auto shape = phi3_shape();
  AdapterSpec spec{.type = AdapterType::lora,
                   .rank = 2,
                   .alpha = 4,
                   .targets = {"q_proj", "v_proj", "o_proj"},
                   .rank_pattern = {{"v_proj", 1}}};
  const auto trained = counting(spec, shape);
  write_peft(trained, shape, folder_, {.config = {.spec = spec}});
  const SafetensorsFile stored(folder_ / kPeftWeights);
  const std::string key = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
  EXPECT_EQ(stored.info(key + "A.weight").shape, (std::vector<int64_t>{3, 24}));
  EXPECT_EQ(stored.info(key + "B.weight").shape, (std::vector<int64_t>{40, 3}));

  const auto floats = [](const TensorSource& source, const std::string& name) {
    const auto bytes = read_all(source, name);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  /// scale B A at a row and column.
  const auto product = [&](const TensorSource& source, const models::AdaptedModule& module,
                           int64_t row, int64_t column) {
    const auto a = floats(source, module.path + ".lora_A"),
               b = floats(source, module.path + ".lora_B");
    double sum = 0;
    for (int64_t k = 0; k < module.rank; ++k) {
      sum += static_cast<double>(b[static_cast<size_t>(row * module.rank + k)]) *
             static_cast<double>(a[static_cast<size_t>(k * module.inputs + column)]);
    }
    return module.scale * sum;
  };
  // In so small a model the joint rank of 3 fits even the key heads' 8 rows.
  const PeftAdapter read(folder_, shape);
  const auto again = models::adapted_modules(read.config().spec, shape);
  for (const auto& module : models::adapted_modules(spec, shape)) {
    const auto same = std::ranges::find(again, module.path, &models::AdaptedModule::path);
    ASSERT_NE(same, again.end());
    for (const auto& [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {7, 23}, {3, 11}}) {
      const double expected = product(trained, module, row, column);
      EXPECT_NEAR(product(read.tensors(), *same, row, column), expected, 1e-6 * expected)
          << module.path;
    }
  }
  // k_proj has rows of zeros.
  EXPECT_THAT(floats(read.tensors(), "model.layers.0.self_attn.k_proj.lora_B"),
              ::testing::Each(0.0F));
}

TEST_F(PeftTest, DoraOnAPartOfAFusedModuleIsRefused) {
  const AdapterSpec spec{.type = AdapterType::dora, .rank = 2, .targets = {"k_proj"}};
  const auto trained = counting(spec, phi3_shape());
  EXPECT_THROW(write_peft(trained, phi3_shape(), folder_, {.config = {.spec = spec}}), UserError);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(PeftTest, OtherFunctionsAreRefusedByName) {
  fs::create_directories(folder_);
  for (const auto* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(fs::path("tests/fixtures/lora_micro") / file, folder_ / file);
  }
  fs::permissions(folder_ / kPeftConfig, fs::perms::owner_all);
  EXPECT_EQ(error_of_reading(llama_micro()), "no error");
  const std::vector<std::pair<std::string, nlohmann::json>> settings{
      {"lora_bias", true},
      {"target_parameters", {"experts.down_proj"}},
      {"layer_replication", {{0, 1}}},
      {"trainable_token_indices", {5}},
      {"use_qalora", true},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "pissa_niter_"},
      {"something_new", 3},
      {"peft_type", "LOHA"},
      {"r", 0},
      {"lora_alpha", "16"},
      {"bias", "some"}};
  const auto before = read_file(folder_ / kPeftConfig);
  for (const auto& [key, value] : settings) {
    change_config(key, value);
    EXPECT_THAT(error_of_reading(llama_micro()), HasSubstr("adapter_config.json: " + key + ":"));
    write_file(folder_ / kPeftConfig, before);
  }
  for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"something_new", nullptr},
           {"megatron_config", nullptr},
           {"eva_config", {{"rho", 2}}},
           {"init_lora_weights", "eva"},
           {"target_modules", {"q_proj", "v_proj", "unknown"}}}) {
    change_config(key, value);
    EXPECT_EQ(error_of_reading(llama_micro()), "no error") << key;
    write_file(folder_ / kPeftConfig, before);
  }
}

TEST_F(PeftTest, SettingsThatCannotBeAreNamedAsPeftNamesThem) {
  fs::create_directories(folder_);
  for (const auto* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(fs::path("tests/fixtures/lora_micro") / file, folder_ / file);
    fs::permissions(folder_ / file, fs::perms::owner_all);
  }
  const auto before = read_file(folder_ / kPeftConfig);
  const auto name = (folder_ / kPeftConfig).string();
  for (const auto& [key, value, words] :
       std::vector<std::tuple<std::string, nlohmann::json, std::string>>{
           {"r", 1000, "r: expected 1 to "},
           {"target_modules", {"unknown"}, "target_modules: 'unknown' matches no matrix"},
           {"layers_to_transform", {99}, "layers_to_transform: expected numbers in [0, "},
           {"modules_to_save", {"unknown"}, "modules_to_save: 'unknown' matches no module"}}) {
    change_config(key, value);
    EXPECT_THAT(error_of_reading(llama_micro()), ::testing::StartsWith(name + ": " + words)) << key;
    write_file(folder_ / kPeftConfig, before);
  }
}

TEST_F(PeftTest, AdaptersOfOtherModelsAreRefused) {
  fs::create_directories(folder_);
  for (const auto* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy_file(fs::path("tests/fixtures/lora_micro") / file, folder_ / file);
    fs::permissions(folder_ / file, fs::perms::owner_all);
  }
  auto shape = llama_micro();
  shape.ffn_dim = 200;  // of no module that it has
  EXPECT_EQ(error_of_reading(shape), "no error");
  shape.dim = 32;
  EXPECT_THAT(error_of_reading(shape), HasSubstr("it is an adapter of another model"));
  shape = llama_micro();
  shape.num_layers = 3;
  EXPECT_THAT(error_of_reading(shape), HasSubstr("model.layers.2.self_attn.q_proj.lora_A.weight', "
                                                 "which its settings and this model ask for"));
  shape.num_layers = 1;
  EXPECT_THAT(error_of_reading(shape), HasSubstr("is of no module that its settings name"));
  const auto bytes = read_file(folder_ / kPeftWeights);
  write_file(folder_ / kPeftWeights, bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(error_of_reading(llama_micro()), HasSubstr("adapter_model.safetensors"));
  fs::rename(folder_ / kPeftWeights, folder_ / "adapter_model.bin");
  EXPECT_THAT(error_of_reading(llama_micro()), HasSubstr("adapter_model.bin is not read: load it"));
  EXPECT_THAT(error_of_reading(llama_micro()), HasSubstr("expected adapter_model.safetensors"));
}

TEST_F(PeftTest, ACopyOfATiedTableIsRefused) {
  auto shape = llama_micro();
  shape.tie_embeddings = true;
  const AdapterSpec spec{.type = AdapterType::lora,
                         .rank = 2,
                         .targets = {"q_proj"},
                         .modules_to_save = {"embed_tokens"}};
  write_peft(counting(spec, shape), shape, folder_, {.config = {.spec = spec}});
  EXPECT_EQ(error_of_reading(shape), "no error");        // written with ensure_weight_tying
  const SafetensorsFile stored(folder_ / kPeftWeights);  // PEFT asks for both
  EXPECT_EQ(read_all(stored, "base_model.model.lm_head.weight"),
            read_all(stored, "base_model.model.model.embed_tokens.weight"));
  change_config("ensure_weight_tying", false);
  EXPECT_THAT(error_of_reading(shape), HasSubstr("head and embedding are one table"));
}

}  // namespace
}  // namespace tessera::checkpoint
