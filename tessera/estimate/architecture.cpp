#include "tessera/estimate/architecture.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/widths.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/json_keys.h"
#include "tessera/models/spec.h"

namespace tessera::estimate {
namespace {

using models::JsonKeys;
using models::ModelShape;

constexpr int64_t kLargestSize = 1 << 28;  // two of them multiplied stay far below 2^63

/// A size that the product of two and a word's bytes does not overflow with.
int64_t size_of(const JsonKeys& keys, const std::string& key, std::optional<int64_t> absent = {}) {
  const int64_t size = keys.size(key, absent);
  if (size > kLargestSize) keys.wrong(key, "a whole number <= 268435456");
  return size;
}

Module group(const std::string& name, std::vector<Module> parts) {
  return {.name = name, .parts = std::move(parts)};
}

Module layers(const std::string& name, int64_t count, std::vector<Module> parts) {
  return {.name = name, .parts = std::move(parts), .count = count, .whole = true};
}

/// The module of a parameter: "model.norm.weight" belongs to "norm".
std::string module_of(const std::string& parameter) {
  const auto begin = parameter.find('.') + 1;
  return parameter.substr(begin, parameter.rfind('.') - begin);
}

void add_parameter(const std::string& name, const models::ParameterSpec& parameter,
                   std::vector<Module>& modules) {
  if (modules.empty() || modules.back().name != name) modules.push_back({.name = name});
  modules.back().bytes += kFloat * parameter.num_elements();
}

/// The model without its head; a rotary embedding keeps two frequency vectors.
Module decoder(const ModelShape& s, const models::ParameterSpecs& parameters) {
  const auto prefix = parameters.block_prefix.substr(0, parameters.block_prefix.find('.') + 1);
  Module model;
  const auto add = [&](const std::vector<models::ParameterSpec>& list) {
    for (const auto& parameter : list) {
      if (!parameter.name.starts_with(prefix)) continue;
      add_parameter(module_of(parameter.name), parameter, model.parts);
    }
  };
  add(parameters.embedding);
  int64_t begin = 0;
  for (const auto& alike : models::alike_layers(s)) {
    std::vector<Module> block;
    for (const auto& parameter : models::spec_of(s.family).parameters(alike.shape).block) {
      add_parameter(parameter.name.substr(0, parameter.name.rfind('.')), parameter, block);
    }
    if (alike.shape.experts.selection_bias) {
      block.push_back(
          {.name = "e_score_correction_bias", .bytes = kFloat * alike.shape.experts.num});
    }
    const auto name = module_of(parameters.block_prefix);
    if (alike.count == s.num_layers) {
      model.parts.push_back(layers(name, alike.count, std::move(block)));
    } else {
      model.parts.push_back(layers(name + "." + std::to_string(begin), 1, block));
      model.parts.push_back(layers(name, alike.count - 1, std::move(block)));
    }
    begin += alike.count;
  }
  add(parameters.head);
  const int64_t rotary = models::spec_of(s.family).rotary_width(s);
  if (rotary > 0) model.parts.push_back({.name = "rotary_emb", .bytes = rotary * kFloat});
  return model;
}

/// The layer that BERT and ViT have in common.
std::vector<Module> encoder_layer(int64_t d, int64_t f, bool qkv_bias) {
  return {linear("attention.query", d, d, qkv_bias),
          linear("attention.key", d, d, qkv_bias),
          linear("attention.value", d, d, qkv_bias),
          linear("attention.output", d, d, true),
          norm("attention.norm", d, 2),
          linear("intermediate.dense", d, f, true),
          linear("output.dense", f, d, true),
          norm("output.norm", d, 2)};
}

Module bert(const JsonKeys& keys) {
  const int64_t d = size_of(keys, "hidden_size");
  const int64_t positions = size_of(keys, "max_position_embeddings");
  Module embeddings{
      .name = "embeddings",
      .bytes = 2 * positions * kLong,  // position_ids and token_type_ids
      .parts = {embedding("word_embeddings", size_of(keys, "vocab_size"), d),
                embedding("position_embeddings", positions, d),
                embedding("token_type_embeddings", size_of(keys, "type_vocab_size", 2), d),
                norm("LayerNorm", d, 2)},
      .whole = true};
  auto encoder = layers("encoder.layer", size_of(keys, "num_hidden_layers"),
                        encoder_layer(d, size_of(keys, "intermediate_size"), true));
  return group("", {std::move(embeddings), std::move(encoder), linear("pooler.dense", d, d, true)});
}

Module vit(const JsonKeys& keys) {
  const int64_t d = size_of(keys, "hidden_size", 768);
  const int64_t patch = size_of(keys, "patch_size", 16);
  const int64_t side = size_of(keys, "image_size", 224) / patch;
  const int64_t inputs = size_of(keys, "num_channels", 3) * patch * patch;
  Module embeddings{.name = "embeddings",
                    .bytes = kFloat * d * (1 + side * side + 1),  // cls_token, positions
                    .parts = {linear("patch_embeddings.projection", inputs, d, true)},
                    .whole = true};
  auto encoder = layers(
      "layers", size_of(keys, "num_hidden_layers", 12),
      encoder_layer(d, size_of(keys, "intermediate_size", 3072), keys.flag("qkv_bias", true)));
  return group("", {std::move(embeddings), std::move(encoder), norm("layernorm", d, 2),
                    linear("pooler.dense", d, d, true)});
}

/// One of T5's two stacks. Its first block alone has the table of relative positions; each stack
/// has a token table of its own, which transformers ties later than Accelerate counts.
Module t5_stack(const std::string& name, const JsonKeys& keys, int64_t num_layers, bool decodes) {
  const int64_t d = size_of(keys, "d_model", 512), f = size_of(keys, "d_ff", 2048);
  const int64_t heads = size_of(keys, "num_heads", 8), inner = heads * size_of(keys, "d_kv", 64);
  const auto attention = [&](const std::string& which) {
    return group(which, {linear("q", d, inner, false), linear("k", d, inner, false),
                         linear("v", d, inner, false), linear("o", inner, d, false),
                         norm("layer_norm", d, 1)});
  };
  const bool gated = keys.text("feed_forward_proj", "relu").starts_with("gated-");
  std::vector<Module> parts{attention("SelfAttention")};
  if (decodes) parts.push_back(attention("EncDecAttention"));
  parts.push_back(linear("wi", d, gated ? 2 * f : f, false));
  parts.push_back(linear("wo", f, d, false));
  parts.push_back(norm("layer_norm", d, 1));
  auto first = layers("block.0", 1, parts);
  first.parts.push_back(embedding("relative_attention_bias",
                                  size_of(keys, "relative_attention_num_buckets", 32), heads));
  auto stack = group(name, {embedding("embed_tokens", size_of(keys, "vocab_size"), d)});
  stack.parts.push_back(std::move(first));
  stack.parts.push_back(layers("block.1", num_layers - 1, parts));
  stack.parts.push_back(norm("final_layer_norm", d, 1));
  return stack;
}

Module t5(const JsonKeys& keys) {
  const int64_t num_layers = size_of(keys, "num_layers", 6);
  return group("",
               {embedding("shared", size_of(keys, "vocab_size"), size_of(keys, "d_model", 512)),
                t5_stack("encoder", keys, num_layers, false),
                t5_stack("decoder", keys, size_of(keys, "num_decoder_layers", num_layers), true)});
}

/// A convolution and its batch norm, which keeps two averages and a counter as buffers.
Module convolution(const std::string& name, int64_t inputs, int64_t outputs, int64_t side) {
  return {.name = name, .bytes = kFloat * (inputs * outputs * side * side + 4 * outputs) + kLong};
}

std::vector<int64_t> list_of(const JsonKeys& keys, const std::string& key,
                             std::vector<int64_t> absent) {
  if (!keys.has(key)) return absent;
  std::vector<int64_t> values;
  for (const auto& value : keys.at(key)) {
    const bool fits =
        value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= 1 << 20;
    if (!fits) keys.wrong(key, "a list of whole numbers from 1 to 1048576");
    values.push_back(value.get<int64_t>());
  }
  if (!keys.at(key).is_array() || values.empty())
    keys.wrong(key, "a list of whole numbers from 1 to 1048576");
  return values;
}

Module resnet_layer(int64_t inputs, int64_t outputs, bool bottleneck, bool shortcut) {
  const int64_t inner = std::max<int64_t>(1, outputs / 4);
  Module layer;
  if (shortcut) layer.parts.push_back(convolution("shortcut", inputs, outputs, 1));
  if (bottleneck) {
    layer.parts.push_back(convolution("layer.0", inputs, inner, 1));
    layer.parts.push_back(convolution("layer.1", inner, inner, 3));
    layer.parts.push_back(convolution("layer.2", inner, outputs, 1));
  } else {
    layer.parts.push_back(convolution("layer.0", inputs, outputs, 3));
    layer.parts.push_back(convolution("layer.1", outputs, outputs, 3));
  }
  return layer;
}

Module resnet(const JsonKeys& keys) {
  const auto widths = list_of(keys, "hidden_sizes", {256, 512, 1024, 2048});
  const auto depths = list_of(keys, "depths", {3, 4, 6, 3});
  if (widths.size() != depths.size()) keys.wrong("depths", "one number for each of hidden_sizes");
  const auto type = keys.text("layer_type", "bottleneck");
  keys.refuse_unless(type == "bottleneck" || type == "basic", "layer_type", "bottleneck or basic");
  int64_t inputs = size_of(keys, "embedding_size", 64);
  auto model = group("", {convolution("embedder", size_of(keys, "num_channels", 3), inputs, 7)});
  for (size_t i = 0; i < widths.size(); ++i) {
    const bool halves = i > 0 || keys.flag("downsample_in_first_stage", false);
    const auto name = "encoder.stages." + std::to_string(i) + ".layers.";
    auto first =
        resnet_layer(inputs, widths[i], type == "bottleneck", halves || inputs != widths[i]);
    first.name = name + "0";
    auto others = resnet_layer(widths[i], widths[i], type == "bottleneck", false);
    others.name = name + "1";
    others.count = depths[i] - 1;
    model.parts.push_back(std::move(first));
    model.parts.push_back(std::move(others));
    inputs = widths[i];
  }
  return model;
}

/// Cosines and sines of every position, which each layer of a Llama kept up to 4.40.
void add_rotary_tables(Module& model, const ModelShape& s) {
  const auto found = std::ranges::find(model.parts, "layers", &Module::name);
  found->bytes += kFloat * (2 * s.max_seq_len * s.head_dim + s.head_dim / 2);
  std::erase_if(model.parts, [](const Module& part) { return part.name == "rotary_emb"; });
}

/// Models that are counted and do not train here.
using Counts = Module (*)(const JsonKeys& keys);
const std::map<std::string, Counts>& counted() {
  static const std::map<std::string, Counts> types{
      {"bert", bert}, {"t5", t5}, {"vit", vit}, {"resnet", resnet}};
  return types;
}

}  // namespace

std::optional<Version> parse_version(const std::string& text) {
  Version version;
  if (std::sscanf(text.c_str(), "%4d.%4d", &version.major, &version.minor) != 2) return {};
  if (version.major < 0 || version.minor < 0) return {};
  return version;
}

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> types = [] {
    auto decoders = models::model_types();
    std::ranges::sort(decoders);
    decoders.insert(decoders.begin(), "bert");
    decoders.insert(decoders.end(), {"t5", "vit", "resnet"});
    return decoders;
  }();
  return types;
}

Architecture architecture_of(const ModelShape& shape) {
  return {.type = models::hf_model_type(shape),
          .modules = decoder(shape, models::spec_of(shape.family).parameters(shape)),
          .shape = shape};
}

Architecture architecture_of(const nlohmann::json& config, const std::string& where,
                             std::optional<Version> version) {
  const JsonKeys keys(where, config);
  const auto type = keys.text("model_type");
  keys.refuse_unless(std::ranges::count(known_model_types(), type) > 0, "model_type",
                     models::either_of(known_model_types()) + "; or give its .safetensors");
  const auto* spec = models::find_spec(type);
  if (spec == nullptr) return {.type = type, .modules = counted().at(type)(keys)};
  auto result = architecture_of(models::model_shape_of(config, where));
  result.type = type;
  if (!version) version = parse_version(keys.text("transformers_version", ""));
  const bool had_tables =
      std::ranges::find(spec->types, type, &models::HfType::name)->layers_had_rotary_tables;
  if (had_tables && version && *version < Version{4, 41}) {
    add_rotary_tables(result.modules, *result.shape);
    result.old_rotary_version = version;
  }
  return result;
}

}  // namespace tessera::estimate
