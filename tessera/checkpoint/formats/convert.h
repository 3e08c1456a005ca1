// A stored model from one format to another, without the code of the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "tessera/checkpoint/formats/gguf/export.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/formats/upcycle.h"

namespace tessera::checkpoint {

enum class Target { huggingface, tessera, llmc, gguf };

struct ConvertOptions {
  TrainingOptions from;  ///< with_optimizer and our_names follow from `to`
  Target to = Target::huggingface;
  std::filesystem::path destination;
  std::filesystem::path
      assets;                 ///< folder with tokenizer and the like; empty: as the source has it
  std::string chat_template;  ///< instead of the tokenizer's; "": that
  std::string model_card;     ///< huggingface: README.md; "": none
  int64_t max_file_bytes = 5'000'000'000;  ///< of tensors in one file; llmc: always one
  std::optional<UpcycleOptions> upcycle;   ///< huggingface, tessera: written as such a mixture
  SourceView::Progress progress;
  GgufFileType type = GgufFileType::f16;             ///< gguf: of matrices
  std::function<void(const GgufExported&)> on_gguf;  ///< gguf: told what reading it back found
};

/// Writes `destination`, a folder (llmc, gguf: a file) that appears when all of it is written.
///   huggingface  parameters, config.json, tokenizer files (hf_export.h)
///   tessera      a complete checkpoint; with the optimizer's state where the source has it
///   llmc         GPT-2 weights as fp32 or bf16 (llmc.h)
///   gguf         for llama.cpp, with tokenizer and template (gguf/export.h)
/// Memory: a few parts; llmc: a matrix or three. UserError: `destination` exists, an unknown model
/// (no config.json), what the source or the format refuses. SystemError: no space, ..
void convert(ConvertOptions options);

}  // namespace tessera::checkpoint
