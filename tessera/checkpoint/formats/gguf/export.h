// Models as GGUF files that llama.cpp runs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/checkpoint/formats/gguf/file.h"

namespace tessera::checkpoint {

struct GgufExportOptions {
  nlohmann::json config;          ///< config.json
  std::filesystem::path assets;   ///< folder with tokenizer and template; empty: there is none
  GgmlType type = GgmlType::f16;  ///< of matrices: f32, f16, bf16, q8_0 or q4_0
  std::string name = "model";     ///< general.name
};

/// What was written, and the largest relative error (of a tensor's norm) that the file, read back, has
/// against the source.
struct GgufExported {
  size_t num_tensors = 0;
  double error = 0;
  std::string worst;  ///< tensor
};

/// Writes a Llama, Mistral, Qwen2, Qwen3, OLMo 2 or SmolLM3 under Hugging Face's names as `path`. Norms
/// and biases are F32; a matrix whose rows are no whole blocks is F16, as llama.cpp's converter has it;
/// with q4_0 the head is Q8_0. Without a tokenizer the file has none ("none").
/// UserError: a model, positions or a tokenizer that llama.cpp does not know, by name.
GgufExported export_gguf(const TensorSource& source, const std::filesystem::path& path,
                         const GgufExportOptions& options);

/// Keys tokenizer.* of a folder: byte-level BPE of tokenizer.json. UserError: another kind, an unknown
/// way to cut words, more tokens than `vocab_size`. `config`: config.json,
/// whose ids of special tokens count where the tokenizer names none.
GgufMetadata gguf_tokenizer(const std::filesystem::path& folder, int64_t vocab_size,
                            const nlohmann::json& config);

}  // namespace tessera::checkpoint
