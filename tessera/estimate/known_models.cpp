#include "tessera/estimate/known_models.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "tessera/base/letters.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/shape.h"

namespace tessera::estimate {
namespace {

struct Published {
  const char* name;
  const char* config;
  const char* preset = "";  ///< that has its numbers; `config` says what it does not
};

// Numbers as published in each model's config.json.
const std::vector<Published>& published() {
  static const std::vector<Published> list = {
      {"google-bert/bert-base-cased",
       R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 768, "num_hidden_layers": 12,
         "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
         "type_vocab_size": 2})"},
      {"google-bert/bert-base-uncased",
       R"({"model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12,
         "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
         "type_vocab_size": 2})"},
      {"google-bert/bert-large-cased",
       R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 1024, "num_hidden_layers":
         24, "num_attention_heads": 16, "intermediate_size": 4096, "max_position_embeddings":
         512, "type_vocab_size": 2})"},
      {"google-bert/bert-large-uncased",
       R"({"model_type": "bert", "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers":
         24, "num_attention_heads": 16, "intermediate_size": 4096, "max_position_embeddings":
         512, "type_vocab_size": 2})"},
      {"openai-community/gpt2", R"({})", "gpt2"},
      {"openai-community/gpt2-medium",
       R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1024, "n_layer": 24, "n_head": 16,
         "n_positions": 1024})"},
      {"openai-community/gpt2-large",
       R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1280, "n_layer": 36, "n_head": 20,
         "n_positions": 1024})"},
      {"openai-community/gpt2-xl",
       R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25,
         "n_positions": 1024})"},
      {"meta-llama/Llama-2-7b-hf",
       R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers":
         32, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
         "max_position_embeddings": 4096, "transformers_version": "4.31.0.dev0"})"},
      {"meta-llama/Llama-2-13b-hf",
       R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120, "num_hidden_layers":
         40, "num_attention_heads": 40, "num_key_value_heads": 40, "intermediate_size": 13824,
         "max_position_embeddings": 4096, "transformers_version": "4.31.0.dev0"})"},
      {"meta-llama/Llama-2-70b-hf",
       R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 8192, "num_hidden_layers":
         80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "max_position_embeddings": 4096, "transformers_version": "4.31.0.dev0"})"},
      {"meta-llama/Meta-Llama-3-8B", R"({"transformers_version": "4.40.0.dev0"})", "llama-3-8b"},
      {"meta-llama/Meta-Llama-3-70B", R"({"transformers_version": "4.40.0.dev0"})", "llama-3-70b"},
      {"meta-llama/Llama-3.1-8B",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers":
         32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "max_position_embeddings": 131072})"},
      {"meta-llama/Llama-3.1-70B",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "num_hidden_layers":
         80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "max_position_embeddings": 131072})"},
      {"meta-llama/Llama-3.1-405B", R"({})", "llama-3.1-405b"},
      {"meta-llama/Llama-3.2-1B", R"({})", "llama-3.2-1b"},
      {"meta-llama/Llama-3.2-3B",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 3072, "num_hidden_layers":
         28, "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 8192,
         "max_position_embeddings": 131072, "tie_word_embeddings": true, "head_dim": 128})"},
      {"meta-llama/Llama-3.3-70B-Instruct",
       R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "num_hidden_layers":
         80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "max_position_embeddings": 131072})"},
      {"mistralai/Mistral-7B-v0.1",
       R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers":
         32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "max_position_embeddings": 32768})"},
      {"mistralai/Mistral-7B-v0.3",
       R"({"model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers":
         32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "max_position_embeddings": 32768})"},
      {"mistralai/Mixtral-8x7B-v0.1",
       R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers":
         32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2})"},
      {"Qwen/Qwen2-0.5B",
       R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers":
         24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
         "max_position_embeddings": 131072, "tie_word_embeddings": true})"},
      {"Qwen/Qwen2-7B",
       R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers":
         28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
         "max_position_embeddings": 131072})"},
      {"Qwen/Qwen2.5-0.5B",
       R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers":
         24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
         "max_position_embeddings": 32768, "tie_word_embeddings": true})"},
      {"Qwen/Qwen2.5-1.5B",
       R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "num_hidden_layers":
         28, "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
         "max_position_embeddings": 131072, "tie_word_embeddings": true})"},
      {"Qwen/Qwen2.5-3B",
       R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers":
         36, "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 11008,
         "max_position_embeddings": 32768, "tie_word_embeddings": true})"},
      {"Qwen/Qwen2.5-7B",
       R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers":
         28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
         "max_position_embeddings": 131072})"},
      {"Qwen/Qwen2.5-14B",
       R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 5120, "num_hidden_layers":
         48, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824,
         "max_position_embeddings": 131072})"},
      {"Qwen/Qwen2.5-32B",
       R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 5120, "num_hidden_layers":
         64, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648,
         "max_position_embeddings": 131072})"},
      {"Qwen/Qwen2.5-72B",
       R"({"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 8192, "num_hidden_layers":
         80, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 29568,
         "max_position_embeddings": 131072})"},
      {"Qwen/Qwen3-0.6B",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers":
         28, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
         "max_position_embeddings": 40960, "tie_word_embeddings": true, "head_dim": 128})"},
      {"Qwen/Qwen3-8B",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers":
         36, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288,
         "max_position_embeddings": 40960, "head_dim": 128})"},
      {"Qwen/Qwen3-32B",
       R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "num_hidden_layers":
         64, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 25600,
         "max_position_embeddings": 40960, "head_dim": 128})"},
      {"google-t5/t5-small",
       R"({"model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048,
         "num_layers": 6, "num_heads": 8})"},
      {"google-t5/t5-base",
       R"({"model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072,
         "num_layers": 12, "num_heads": 12})"},
      {"google-t5/t5-large",
       R"({"model_type": "t5", "vocab_size": 32128, "d_model": 1024, "d_kv": 64, "d_ff": 4096,
         "num_layers": 24, "num_heads": 16})"},
      {"google/flan-t5-base",
       R"({"model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048,
         "num_layers": 12, "num_heads": 12, "feed_forward_proj": "gated-gelu"})"},
      {"google/vit-base-patch16-224",
       R"({"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12,
         "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224, "patch_size":
         16, "num_channels": 3})"},
      {"google/vit-large-patch16-224",
       R"({"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24,
         "num_attention_heads": 16, "intermediate_size": 4096, "image_size": 224, "patch_size":
         16, "num_channels": 3})"},
      {"microsoft/resnet-18",
       R"({"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [64, 128, 256, 512],
         "depths": [2, 2, 2, 2], "layer_type": "basic", "num_channels": 3})"},
      {"microsoft/resnet-50",
       R"({"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
         "depths": [3, 4, 6, 3], "layer_type": "bottleneck", "num_channels": 3})"},
      {"microsoft/resnet-101",
       R"({"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
         "depths": [3, 4, 23, 3], "layer_type": "bottleneck", "num_channels": 3})"},
  };
  return list;
}

/// The part after the slash; all of it without one.
std::string without_owner(const std::string& name) { return name.substr(name.find('/') + 1); }

bool is_name_of(const Published& model, const std::string& asked) {
  const auto name = lower_case(model.name);
  const auto matches = [&](const std::string& text) {
    return text == name || text == without_owner(name) || text == model.preset;
  };
  constexpr std::string_view kInstruct = "-instruct";
  return matches(asked) ||
         (asked.ends_with(kInstruct) && matches(asked.substr(0, asked.size() - kInstruct.size())));
}

}  // namespace

std::optional<nlohmann::json> known_config(const std::string& name) {
  const auto asked = lower_case(name);
  for (const auto& model : published()) {
    if (!is_name_of(model, asked)) continue;
    auto config = nlohmann::json::parse(model.config);
    if (model.preset[0] != '\0')
      config.update(nlohmann::json(models::to_hf_config(models::model_preset(model.preset))));
    return config;
  }
  const auto presets = models::model_preset_names();
  if (std::ranges::count(presets, asked) == 0) return {};
  return nlohmann::json(models::to_hf_config(models::model_preset(asked)));
}

std::vector<std::string> known_model_names() {
  auto names = models::model_preset_names();
  for (const auto& model : published()) names.emplace_back(model.name);
  return names;
}

}  // namespace tessera::estimate
