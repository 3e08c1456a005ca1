// How a model's answers are drawn and where they end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/generate/sampling.h"
#include "tessera/inference/request.h"

namespace tessera::inference {

struct Settings {
  generate::SamplingOptions sampling;
  std::vector<int64_t> end_tokens;  ///< eos_token_id
  std::string note;  ///< what generation_config.json asks and nobody does; "": nothing
};

/// What the request says, else generation_config.json in `assets` (do_sample: false is temperature
/// 0), else temperature 0.7 and nothing else. UserError with file and key for a value that it cannot
/// have.
Settings settings_of(const Request& request, const std::filesystem::path& assets);

}  // namespace tessera::inference
