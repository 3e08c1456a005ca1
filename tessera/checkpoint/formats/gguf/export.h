// Models as GGUF files that llama.cpp runs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/checkpoint/formats/gguf/types.h"

namespace tessera::checkpoint {

inline constexpr const char* kGgufChatTemplate = "tokenizer.chat_template";

struct GgufExportOptions {
  nlohmann::json config;         ///< config.json
  std::filesystem::path assets;  ///< folder with tokenizer and template; empty: there is none
  std::string chat_template;     ///< instead of the tokenizer's; "": that
  GgufFileType type = GgufFileType::f16;  ///< of matrices
  std::string name = "model";             ///< general.name
};

/// What was written, and the largest relative error (of a tensor's norm) that the file, read back, has
/// against the source.
struct GgufExported {
  size_t num_tensors = 0;
  double error = 0;
  std::string worst;         ///< tensor
  size_t num_fallbacks = 0;  ///< matrices whose rows are too short for the type that was asked for
};

/// Writes a model of architecture.h, under our names, as `path`; types.h has the types of its tensors.
/// Without a tokenizer the file has none ("none"). UserError: a model, positions or a tokenizer that
/// llama.cpp does not know, by name.
GgufExported export_gguf(const TensorSource& source, const std::filesystem::path& path,
                         const GgufExportOptions& options);

/// Keys tokenizer.* of a folder: byte-level BPE of tokenizer.json; SentencePiece's of tokenizer.model,
/// or of tokenizer.json where that has bytes to fall back to. UserError: another kind, an unknown
/// way to cut words, more tokens than `vocab_size`. `config`: config.json,
/// whose ids of special tokens count where the tokenizer names none.
GgufMetadata gguf_tokenizer(const std::filesystem::path& folder, int64_t vocab_size,
                            const nlohmann::json& config);

}  // namespace tessera::checkpoint
