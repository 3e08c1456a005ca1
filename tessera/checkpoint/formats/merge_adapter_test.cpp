#include "tessera/checkpoint/formats/merge_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/hf_config.h"

namespace tessera::checkpoint {
namespace {

using models::AdapterSpec;
using models::AdapterType;
using testing::MemorySource;
using testing::read_all;

models::ModelShape shape_named(const std::string& name) {
  const auto counts = nlohmann::json::parse(std::ifstream("tests/fixtures/adapters/counts.json"));
  return models::model_shape_of(counts["models"][name], name);
}

class RandomTensors {
 public:
  void add(MemorySource& source, const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<float> values(static_cast<size_t>(TensorInfo{DType::f32, shape}.num_elements()));
    for (auto& value : values) value = normal_(generator_);
    source.add(name, DType::f32, shape, values);
  }

  MemorySource base(const models::ModelShape& shape) {
    MemorySource source;
    for (const auto& p : models::trained_parameters({}, shape)) add(source, p.name, p.shape);
    return source;
  }

  MemorySource trained(const AdapterSpec& spec, const models::ModelShape& shape) {
    MemorySource source;
    for (const auto& p : models::trained_parameters(spec, shape)) add(source, p.name, p.shape);
    return source;
  }

 private:
  std::mt19937 generator_{7};
  std::normal_distribution<float> normal_;
};

std::vector<float> read_floats(const TensorSource& source, const std::string& name) {
  const auto bytes = read_all(source, name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// m (W + scale B A) / ||W + scale B A||, or without DoRA W + scale B A, at [output, input].
std::vector<std::vector<double>> merged_by_definition(const TensorSource& base,
                                                      const TensorSource& trained,
                                                      const models::AdaptedModule& module,
                                                      bool dora) {
  const std::string infix = module.embedding ? ".lora_embedding_" : ".lora_";
  const auto w = read_floats(base, module.path + ".weight");
  const auto a = read_floats(trained, module.path + infix + "A");
  const auto b = read_floats(trained, module.path + infix + "B");
  std::vector<std::vector<double>> result;
  for (int64_t o = 0; o < module.outputs; ++o) {
    auto& row = result.emplace_back();
    double squares = 0;
    for (int64_t i = 0; i < module.inputs; ++i) {
      const auto at = module.inputs_first ? i * module.outputs + o : o * module.inputs + i;
      double value = w[static_cast<size_t>(at)];
      for (int64_t k = 0; k < module.rank; ++k) {
        value += module.scale * b[static_cast<size_t>(o * module.rank + k)] *
                 a[static_cast<size_t>(k * module.inputs + i)];
      }
      squares += value * value;
      row.push_back(value);
    }
    if (!dora) continue;
    const auto m = read_floats(trained, module.path + ".lora_magnitude_vector");
    for (auto& value : row) value *= m[static_cast<size_t>(o)] / std::sqrt(squares);
  }
  return result;
}

void expect_merged(const std::string& model, const AdapterSpec& spec) {
  RandomTensors random;
  const auto shape = shape_named(model);
  const auto base = random.base(shape), trained = random.trained(spec, shape);
  const MergedSource merged(base, trained, spec, shape);
  EXPECT_EQ(merged.tensors(), base.tensors());
  std::set<std::string> changed;
  for (const auto& module : models::adapted_modules(spec, shape)) {
    const auto values = read_floats(merged, module.path + ".weight");
    const auto want = merged_by_definition(base, trained, module, spec.type == AdapterType::dora);
    double worst = 0;
    for (int64_t o = 0; o < module.outputs; ++o) {
      for (int64_t i = 0; i < module.inputs; ++i) {
        const auto at = module.inputs_first ? i * module.outputs + o : o * module.inputs + i;
        worst = std::max(worst, std::abs(values[static_cast<size_t>(at)] -
                                         want[static_cast<size_t>(o)][static_cast<size_t>(i)]));
      }
    }
    EXPECT_LT(worst, 3e-5) << module.path;  // of sums of numbers up to some 20
    changed.insert(module.path + ".weight");
  }
  for (const auto& p : models::trained_parameters(spec, shape)) {
    if (p.of_adapter) continue;
    EXPECT_EQ(read_all(merged, p.name), read_all(trained, p.name)) << p.name;
    changed.insert(p.name);
  }
  for (const auto& [name, info] : base.tensors()) {
    if (changed.contains(name)) continue;
    EXPECT_EQ(read_all(merged, name), read_all(base, name)) << name;
  }
}

TEST(MergeAdapterTest, WeightsAreThoseOfTheDefinition) {
  for (const auto type : {AdapterType::lora, AdapterType::dora}) {
    const AdapterSpec llama{.type = type,
                            .rank = 3,
                            .alpha = 5,
                            .rslora = true,
                            .targets = {"q_proj", "down_proj", "embed_tokens"},
                            .rank_pattern = {{"layers.1.*", 2}},
                            .modules_to_save = {"norm", "lm_head"}};
    expect_merged("llama", llama);
    const AdapterSpec gpt2{.type = type,
                           .rank = 3,
                           .targets = {"c_attn", "mlp.c_proj"},
                           .bias = models::AdapterBias::all};
    expect_merged("gpt2", gpt2);
  }
}

TEST(MergeAdapterTest, WeightsAreThoseThatPeftMerged) {
  const auto shape = models::read_model_shape("tests/fixtures/llama_micro/config.json");
  const Safetensors base("tests/fixtures/llama_micro");
  const PeftAdapter adapter("tests/fixtures/lora_micro", shape);
  const MergedSource merged(base, adapter.tensors(), adapter.config().spec, shape);
  const SafetensorsFile expected("tests/fixtures/lora_micro/expected.safetensors");
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_THAT(
      read_floats(merged, name),
      ::testing::Pointwise(::testing::FloatNear(1e-6F), read_floats(expected, "merged." + name)));
}

/// A read that begins and ends inside of rows.
TEST(MergeAdapterTest, AnyStretchIsThatOfTheWhole) {
  RandomTensors random;
  const auto shape = shape_named("llama");
  const AdapterSpec spec{.type = AdapterType::dora, .rank = 2, .targets = {"k_proj"}};
  const auto base = random.base(shape), trained = random.trained(spec, shape);
  const MergedSource merged(base, trained, spec, shape);
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const auto whole = read_all(merged, name);
  std::vector<std::byte> part(50 * sizeof(float));
  merged.read(name, 13, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 13 * sizeof(float)));
}

TEST(MergeAdapterTest, SubtractingGivesTheBaseBack) {
  RandomTensors random;
  const auto shape = shape_named("llama");
  const AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {"all-linear"}};
  const auto base = random.base(shape), trained = random.trained(spec, shape);
  const MergedSource merged(base, trained, spec, shape);
  const MergedSource again(merged, trained, spec, shape, {.subtracts = true});
  for (const auto& [name, info] : base.tensors()) {
    EXPECT_THAT(read_floats(again, name),
                ::testing::Pointwise(::testing::FloatNear(1e-5F), read_floats(base, name)));
  }
  const AdapterSpec dora{.type = AdapterType::dora, .rank = 2, .targets = {"q_proj"}};
  const auto other = random.trained(dora, shape);
  EXPECT_THROW(MergedSource(base, other, dora, shape, {.subtracts = true}), UserError);
}

// What balanced a run's experts is of the model that it trained.
TEST(MergeAdapterTest, TakesTheSelectionBiasesOfTheRun) {
  RandomTensors random;
  const auto shape = models::read_model_shape("tests/fixtures/families/deepseek_v3/config.json");
  const AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {"o_proj"}};
  auto base = random.base(shape), trained = random.trained(spec, shape);
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  for (auto* source : {&base, &trained}) random.add(*source, bias, {shape.experts.num});
  EXPECT_EQ(read_floats(MergedSource(base, trained, spec, shape), bias),
            read_floats(trained, bias));
  EXPECT_EQ(read_floats(MergedSource(base, trained, spec, shape, {.subtracts = true}), bias),
            read_floats(base, bias));
}

TEST(MergeAdapterTest, ATiedTableIsNotMergedInto) {
  RandomTensors random;
  auto shape = shape_named("llama");
  shape.tie_embeddings = true;
  const AdapterSpec spec{.type = AdapterType::lora, .rank = 2, .targets = {"embed_tokens"}};
  const auto base = random.base(shape), trained = random.trained(spec, shape);
  EXPECT_THROW(MergedSource(base, trained, spec, shape), UserError);
}

}  // namespace
}  // namespace tessera::checkpoint
