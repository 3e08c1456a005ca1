// Weights of Hugging Face folders into a model's parameters.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>

namespace tessera::checkpoint {

/// Copies every parameter of `model` from a folder with model.safetensors or
/// model.safetensors.index.json, or from one such file, whatever its dtype there; stored names may
/// lack a leading "transformer." (GPT-2 on the Hub). Stored tensors that no parameter takes (tied
/// heads, attention masks) are left alone. UserError names the first parameter that is missing or
/// has another shape. Memory: none beside the mapped file.
void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path);

}  // namespace tessera::checkpoint
