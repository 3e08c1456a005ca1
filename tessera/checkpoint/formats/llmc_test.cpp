#include "tessera/checkpoint/formats/llmc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using testing::Bytes;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::read_all;

constexpr Gpt2Shape kShape{
    .max_seq_len = 5, .vocab_size = 130, .num_layers = 2, .num_heads = 2, .dim = 8};

/// Every tensor of a GPT-2, as Hugging Face names and lays them out; all values differ.
MemorySource counting_gpt2(const Gpt2Shape& shape, const std::string& prefix = "transformer.") {
  MemorySource source;
  const int64_t c = shape.dim;
  source.add_counting(prefix + "wte.weight", {shape.vocab_size, c});
  source.add_counting(prefix + "wpe.weight", {shape.max_seq_len, c});
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto block = prefix + "h." + std::to_string(layer) + ".";
    for (const auto* norm : {"ln_1", "ln_2"}) {
      source.add_counting(block + norm + ".weight", {c});
      source.add_counting(block + norm + ".bias", {c});
    }
    const std::tuple<const char*, int64_t, int64_t> linears[] = {{"attn.c_attn", c, 3 * c},
                                                                 {"attn.c_proj", c, c},
                                                                 {"mlp.c_fc", c, 4 * c},
                                                                 {"mlp.c_proj", 4 * c, c}};
    for (const auto& [name, in, out] : linears) {
      source.add_counting(block + name + ".weight", {in, out});
      source.add_counting(block + name + ".bias", {out});
    }
  }
  source.add_counting(prefix + "ln_f.weight", {c});
  source.add_counting(prefix + "ln_f.bias", {c});
  return source;
}

float value_at(const Bytes& bytes, int64_t element) {
  float value = 0;
  std::memcpy(&value, bytes.data() + element * 4, 4);
  return value;
}

class Llmc : public ::testing::Test {
 protected:
  std::string exported(const TensorSource& source, const Gpt2Shape& shape, DType dtype) const {
    export_llmc(source, shape, path_, dtype);
    return read_file(path_);
  }
  std::string refused(const std::string& file) const {
    folder_.write("broken.bin", file);
    return refusal([&] { LlmcSource opened(folder_.path() / "broken.bin"); });
  }

  const TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "model.bin";
};

TEST_F(Llmc, LayoutIsThatOfLlmc) {
  const auto source = counting_gpt2(kShape);
  const auto file = exported(source, kShape, DType::f32);
  std::array<int32_t, 256> header{};
  std::memcpy(header.data(), file.data(), sizeof(header));
  EXPECT_THAT(std::vector<int32_t>(header.begin(), header.begin() + 9),
              ::testing::ElementsAre(20240326, 3, 5, 130, 2, 2, 8, 256, 0));

  const Bytes body(reinterpret_cast<const std::byte*>(file.data()) + 1024,
                   reinterpret_cast<const std::byte*>(file.data()) + file.size());
  const auto expect_at = [&](int64_t element, const std::string& name, int64_t index) {
    EXPECT_EQ(value_at(body, element), value_at(read_all(source, name), index))
        << name << "[" << index << "]";
  };
  const int64_t c = 8, layers = 2;
  expect_at(0, "transformer.wte.weight", 0);
  expect_at(130 * c - 1, "transformer.wte.weight", 130 * c - 1);
  for (int64_t i = 130 * c; i < 256 * c; ++i) EXPECT_EQ(value_at(body, i), 0);
  int64_t at = 256 * c;
  expect_at(at, "transformer.wpe.weight", 0);
  at += 5 * c;
  expect_at(at + c, "transformer.h.1.ln_1.weight", 0);
  at += layers * c;
  expect_at(at, "transformer.h.0.ln_1.bias", 0);
  at += layers * c;
  // [out, in] there, [in, out] here: row 5, column 3 of layer 1.
  expect_at(at + 3 * c * c + 5 * c + 3, "transformer.h.1.attn.c_attn.weight", 3 * 3 * c + 5);
  at += layers * 3 * c * c;
  expect_at(at, "transformer.h.0.attn.c_attn.bias", 0);
  at += layers * 3 * c;
  expect_at(at + 1, "transformer.h.0.attn.c_proj.weight", c);
  at += layers * (c * c + c) + layers * 2 * c;
  expect_at(at + 1, "transformer.h.0.mlp.c_fc.weight", 4 * c);
  at += layers * (4 * c * c + 4 * c);
  expect_at(at + 1, "transformer.h.0.mlp.c_proj.weight", c);
  at += layers * (4 * c * c + c);
  expect_at(at, "transformer.ln_f.weight", 0);
  expect_at(at + c, "transformer.ln_f.bias", 0);
  EXPECT_EQ(body.size(), static_cast<size_t>((at + 2 * c) * 4));
}

TEST_F(Llmc, WhatIsWrittenIsReadBack) {
  const auto source = counting_gpt2(kShape);
  exported(source, kShape, DType::f32);
  EXPECT_TRUE(is_llmc(path_));
  const LlmcSource stored(path_);
  EXPECT_EQ(stored.shape(), kShape);
  EXPECT_EQ(stored.tensors(), source.tensors());
  for (const auto& [name, info] : source.tensors()) {
    EXPECT_EQ(read_all(stored, name), read_all(source, name)) << name;
  }
}

TEST_F(Llmc, AnyRangeOfATransposedTensorIsRight) {
  const auto source = counting_gpt2(kShape);
  exported(source, kShape, DType::f32);
  const LlmcSource stored(path_);
  for (const std::string name :
       {"transformer.h.1.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.weight"}) {
    const auto whole = read_all(source, name);
    const int64_t size = source.info(name).num_elements();
    for (int64_t begin = 0; begin < size; ++begin) {
      for (int64_t count = 1; count <= size - begin; count += 7) {
        Bytes part(static_cast<size_t>(count * 4));
        stored.read(name, begin, part);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin * 4, part.size()), 0)
            << name << " " << begin << " " << count;
      }
    }
  }
}

TEST_F(Llmc, Bf16IsRoundedOnceAndReadAsItIs) {
  const auto source = counting_gpt2(kShape);
  const auto file = exported(source, kShape, DType::bf16);
  EXPECT_EQ(file[4], 5);
  const LlmcSource stored(path_);
  for (const auto& [name, info] : source.tensors()) {
    const auto original = read_all(source, name);
    Bytes expected(original.size() / 2);
    convert_values(original, DType::f32, expected, DType::bf16);
    EXPECT_EQ(stored.info(name), (TensorInfo{DType::bf16, info.shape}));
    EXPECT_EQ(read_all(stored, name), expected) << name;
  }
}

TEST_F(Llmc, LargerThanTheBuffers) {
  const Gpt2Shape shape{
      .max_seq_len = 3, .vocab_size = 10, .num_layers = 1, .num_heads = 1, .dim = 515};
  const auto source = counting_gpt2(shape);  // c_attn: 515 x 1545, three parts
  exported(source, shape, DType::f32);
  const LlmcSource stored(path_);
  for (const auto& [name, info] : source.tensors()) {
    EXPECT_EQ(read_all(stored, name), read_all(source, name)) << name;
  }
}

TEST_F(Llmc, HuggingFaceNamesMayLackThePrefix) {
  const auto with = exported(counting_gpt2(kShape), kShape, DType::f32);
  EXPECT_EQ(exported(counting_gpt2(kShape, ""), kShape, DType::f32), with);
}

TEST_F(Llmc, AFixtureGoesThere) {
  const Safetensors source("tests/fixtures/gpt2_micro");
  const Gpt2Shape shape{
      .max_seq_len = 64, .vocab_size = 256, .num_layers = 2, .num_heads = 4, .dim = 64};
  exported(source, shape, DType::f32);
  const LlmcSource stored(path_);
  for (const auto& [name, info] : stored.tensors()) {
    EXPECT_EQ(read_all(stored, name), read_all(source, name)) << name;
  }
}

TEST_F(Llmc, WrongFilesAreRefusedInOneLine) {
  const auto good = exported(counting_gpt2(kShape), kShape, DType::f32);
  const auto with = [&](size_t index, int32_t value) {
    auto changed = good;
    std::memcpy(changed.data() + index * 4, &value, 4);
    return changed;
  };
  EXPECT_EQ(refused(good), "(accepted)");
  EXPECT_THAT(refused(""),
              HasSubstr("expected an llm.c checkpoint, which begins with 20240326, got 0"));
  EXPECT_THAT(refused(with(0, 20240520)), HasSubstr("got 20240520"));
  EXPECT_THAT(refused(with(1, 1)), HasSubstr("expected version 3 (fp32) or 5 (bf16)"));
  EXPECT_THAT(refused(with(4, -1)),
              HasSubstr("num_layers: expected a size from 1 to 4096, got -1"));
  EXPECT_THAT(refused(with(5, 3)), HasSubstr("expected num_heads 3 to divide channels 8"));
  EXPECT_THAT(refused(with(7, 64)),
              HasSubstr("padded_vocab_size: expected at least vocab_size 130"));
  EXPECT_THAT(refused(good.substr(0, good.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(refused(good + "x"), HasSubstr("too long"));
  EXPECT_THAT(refused(with(6, 1 << 17)), HasSubstr("truncated"));  // absurd, but nothing overflows
}

TEST_F(Llmc, WrongWeightsAreRefusedInOneLine) {
  const auto refused_export = [&](const TensorSource& source, DType dtype) {
    return refusal([&] { export_llmc(source, kShape, path_, dtype); });
  };
  auto source = counting_gpt2(kShape);
  EXPECT_THAT(refused_export(source, DType::f16), HasSubstr("hold F32 or BF16, got F16"));
  source.add_counting("transformer.h.1.mlp.c_fc.weight", {32, 8});
  EXPECT_THAT(refused_export(source, DType::f32),
              HasSubstr("'transformer.h.1.mlp.c_fc.weight': expected floats of shape [8, 32], got "
                        "F32 of shape [32, 8]"));
  EXPECT_THAT(refused_export(MemorySource(), DType::f32),
              HasSubstr("holds no tensor 'transformer.wte.weight'"));
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST(Gpt2Config, IsWhatTransformersReads) {
  const auto config = gpt2_config(kShape);
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["n_embd"], 8);
  EXPECT_EQ(config["n_positions"], 5);
}

}  // namespace
}  // namespace tessera::checkpoint
