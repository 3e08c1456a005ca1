#include "tessera/estimate/architecture.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tessera/base/testing.h"
#include "tessera/estimate/known_models.h"
#include "tessera/models/shape.h"

namespace tessera::estimate {
namespace {

const Version kNewest{5, 23};

Architecture known(const std::string& name, std::optional<Version> version = {}) {
  return architecture_of(known_config(name).value(), name, version);
}

struct Recorded {
  const char* name;
  int64_t total, largest;
};

// What Accelerate 1.15 counts in the modules that transformers 5.23 builds on the meta device from
// the same numbers (accelerate.utils.calculate_maximum_sizes of AutoModel.from_config).
const Recorded kRecorded[] = {
    {"google-bert/bert-base-cased", 433249280, 90669056},
    {"google-bert/bert-base-uncased", 437937152, 95356928},
    {"google-bert/bert-large-cased", 1334325248, 120889344},
    {"google-bert/bert-large-uncased", 1340575744, 127139840},
    {"openai-community/gpt2", 497759232, 154389504},
    {"openai-community/gpt2-medium", 1419292672, 205852672},
    {"openai-community/gpt2-large", 3096120320, 257315840},
    {"openai-community/gpt2-xl", 6230444800, 321644800},
    {"meta-llama/Llama-2-7b-hf", 26429374976, 809533440},
    {"meta-llama/Llama-2-13b-hf", 51408097792, 1268817920},
    {"meta-llama/Llama-2-70b-hf", 274858017280, 3422617600},
    {"meta-llama/Meta-Llama-3-8B", 30019699200, 2101346304},
    {"meta-llama/Meta-Llama-3-70B", 278012133888, 4202692608},
    {"meta-llama/Llama-3.1-8B", 30019699200, 2101346304},
    {"meta-llama/Llama-3.1-70B", 278012133888, 4202692608},
    {"meta-llama/Llama-3.1-405B", 1615008170496, 12750815232},
    {"meta-llama/Llama-3.2-1B", 4943257856, 1050673152},
    {"meta-llama/Llama-3.2-3B", 12850999808, 1576009728},
    {"meta-llama/Llama-3.3-70B-Instruct", 278012133888, 4202692608},
    {"mistralai/Mistral-7B-v0.1", 28442640896, 872448000},
    {"mistralai/Mistral-7B-v0.3", 28455223808, 872448000},
    {"mistralai/Mixtral-8x7B-v0.1", 186286883328, 5805080576},
    {"Qwen/Qwen2-0.5B", 1976131328, 544538624},
    {"Qwen/Qwen2-7B", 28282477056, 2179989504},
    {"Qwen/Qwen2.5-0.5B", 1976131328, 544538624},
    {"Qwen/Qwen2.5-1.5B", 6174857728, 933494784},
    {"Qwen/Qwen2.5-3B", 12343755264, 1244659712},
    {"Qwen/Qwen2.5-7B", 28282477056, 2179989504},
    {"Qwen/Qwen2.5-14B", 55965864448, 3114270720},
    {"Qwen/Qwen2.5-32B", 127941235200, 3114270720},
    {"Qwen/Qwen2.5-72B", 285841981952, 4982833152},
    {"Qwen/Qwen3-0.6B", 2384200192, 622329856},
    {"Qwen/Qwen3-8B", 30273622528, 2489319424},
    {"Qwen/Qwen3-32B", 127936844288, 3111649280},
    {"google-t5/t5-small", 373622784, 65798144},
    {"google-t5/t5-base", 1089008640, 98697216},
    {"google-t5/t5-large", 3213864960, 131596288},
    {"google/flan-t5-base", 1089008640, 98697216},
    {"google/vit-base-patch16-224", 345556992, 28351488},
    {"google/vit-large-patch16-224", 1217404928, 50384896},
    {"microsoft/resnet-18", 44744608, 9445384},
    {"microsoft/resnet-50", 94245032, 9445384},
    {"microsoft/resnet-101", 170422848, 9445384},
};

TEST(Architecture, CountsAsAccelerateDoes) {
  for (const auto& recorded : kRecorded) {
    const auto modules = known(recorded.name, kNewest).modules;
    EXPECT_EQ(total_bytes(modules), recorded.total) << recorded.name;
    EXPECT_EQ(largest_layer(modules).bytes, recorded.largest) << recorded.name;
  }
}

// Bytes that transformers 5.23 allocates for DeepSeek-V3 in float32, its dense layers smaller than the others.
TEST(Architecture, CountsLayersThatDiffer) {
  const auto config = nlohmann::json::parse(
      R"({"model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
         "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
         "num_attention_heads": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
         "max_position_embeddings": 4096})");
  const auto architecture = architecture_of(config, "m/config.json");
  EXPECT_EQ(total_bytes(architecture.modules), 2680398960896);
  EXPECT_EQ(largest_layer(architecture.modules).bytes, 46029145088);
  EXPECT_EQ(largest_layer(architecture.modules).name, "layers.3");
  EXPECT_EQ(models::num_parameters(*architecture.shape), 671026404352);
  EXPECT_EQ(models::num_active_parameters(*architecture.shape), 37552282624);
}

// Of gpt-oss-20b, whose experts have biases and whose heads have sinks.
TEST(Architecture, CountsBiasesOfExperts) {
  const auto config = nlohmann::json::parse(
      R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
         "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
         "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131072})");
  const auto architecture = architecture_of(config, "m/config.json");
  EXPECT_EQ(models::num_parameters(*architecture.shape), 20914757184);
  EXPECT_EQ(models::num_active_parameters(*architecture.shape), 4187440704);
  constexpr int64_t kRotary = 4 * 64;  // the family has a table of half as many, or two
  EXPECT_NEAR(static_cast<double>(total_bytes(architecture.modules)), 81342494976.0, kRotary);
  EXPECT_NEAR(static_cast<double>(largest_layer(architecture.modules).bytes), 3292747904.0,
              kRotary);
  EXPECT_EQ(largest_layer(architecture.modules).name, "layers.0");
}

TEST(Architecture, EveryKnownNameHasOne) {
  for (const auto& name : known_model_names()) {
    EXPECT_GT(total_bytes(known(name).modules), 0) << name;
  }
}

// The figure of 2024, when transformers 4.40 came with the model: 256 MiB of rotary tables.
TEST(Architecture, CountsRotaryTablesOfTheTransformersThatWroteTheConfiguration) {
  const auto then = known("meta-llama/Meta-Llama-3-8B");
  EXPECT_EQ(then.old_rotary_version, (Version{4, 40}));
  EXPECT_EQ(total_bytes(then.modules), 30288142336);
  EXPECT_EQ(total_bytes(known("llama-3-8b").modules), 30288142336);
  EXPECT_EQ(total_bytes(known("llama-3-8b", Version{4, 41}).modules), 30019699200);
  EXPECT_FALSE(known("meta-llama/Llama-3.1-8B").old_rotary_version);
}

TEST(Architecture, AgreesWithTheShapesThatTrainHere) {
  for (const auto& name : known_model_names()) {
    const auto architecture = known(name, kNewest);
    if (!architecture.shape) continue;
    const auto& shape = *architecture.shape;
    const bool rotates =
        shape.family == models::ModelFamily::llama || shape.family == models::ModelFamily::moe;
    const int64_t head = shape.tie_embeddings ? 0 : shape.vocab_size * shape.dim;
    EXPECT_EQ(total_bytes(architecture.modules),
              4 * (models::num_parameters(shape) - head + (rotates ? shape.head_dim : 0)))
        << name;
  }
}

TEST(Architecture, LargestLayerHasAName) {
  EXPECT_EQ(largest_layer(known("bert-base-cased").modules).name, "embeddings");
  EXPECT_EQ(largest_layer(known("mistral-7b-v0.1").modules).name, "layers.0");
  EXPECT_EQ(largest_layer(known("resnet-50").modules).name, "encoder.stages.3.layers.0.layer.1");
}

TEST(KnownModels, WithAndWithoutOwnerInAnyCaseAndTuned) {
  EXPECT_EQ(known_config("bert-base-cased"), known_config("google-bert/bert-base-cased"));
  EXPECT_EQ(known_config("Meta-Llama-3-8B-Instruct"), known_config("meta-llama/meta-llama-3-8b"));
  EXPECT_TRUE(known_config("tiny"));
  EXPECT_TRUE(known_config("Llama-3.3-70B-Instruct"));
  EXPECT_FALSE(known_config("bert-base-case"));
  EXPECT_FALSE(known_config("someone/bert-base-cased"));
}

TEST(Architecture, RefusesInOneLine) {
  const auto message = [](const char* json) {
    return testing::message_of(
        [&] { architecture_of(nlohmann::json::parse(json), "m/config.json"); });
  };
  EXPECT_EQ(message(R"({"model_type": "falcon"})"),
            "m/config.json: model_type: '\"falcon\"' is not supported; expected bert, deepseek_v3, "
            "gemma2, gemma3_text, gpt2, gpt_oss, llama, mistral, mixtral, olmo2, olmoe, phi3, "
            "pr_moe, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3, t5, vit or resnet; or give its "
            ".safetensors");
  EXPECT_EQ(message(R"({"model_type": "bert"})"),
            "m/config.json: hidden_size: expected a value, got none");
  EXPECT_EQ(message(R"({"model_type": "t5", "vocab_size": 100, "d_model": 9999999999999})"),
            "m/config.json: d_model: expected a whole number <= 268435456, got '9999999999999'");
  EXPECT_EQ(message(R"({"model_type": "resnet", "hidden_sizes": [256], "depths": [1, 2]})"),
            "m/config.json: depths: expected one number for each of hidden_sizes, got '[1,2]'");
}

TEST(Modules, RefusesWhatNoMachineHolds) {
  auto big = embedding("table", 1 << 28, 1 << 24);
  big.count = 1 << 20;
  Module model;
  model.parts.push_back(big);
  EXPECT_EQ(testing::message_of([&] { total_bytes(model); }),
            "a model of 1.9e+22 bytes is larger than any machine; check its sizes");
}

TEST(Modules, OfStoredTensors) {
  const auto model = modules_of_tensors({{"model.embed_tokens.weight", 400},
                                         {"model.layers.0.mlp.up.weight", 100},
                                         {"model.layers.0.experts.0.weight", 350},
                                         {"model.layers.1.mlp.up.weight", 100},
                                         {"scale", 4}});
  EXPECT_EQ(total_bytes(model), 954);
  EXPECT_EQ(largest_layer(model).name, "model.layers.0");
  EXPECT_EQ(largest_layer(model).bytes, 450);
}

}  // namespace
}  // namespace tessera::estimate
