// What Ollama needs beside a GGUF file.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::checkpoint {

/// A Modelfile for the GGUF file at `path`, which it names as lying beside it: what ends an answer, and
/// how tokens are drawn where generation_config.json in `assets` says so. The chat template is inside
/// the GGUF file, where Ollama finds it. UserError: a generation_config.json that is none.
std::string modelfile(const std::filesystem::path& path, const std::filesystem::path& assets);

}  // namespace tessera::checkpoint
