// What `tessera checkpoint` prints.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/checkpoint/formats/diff.h"

namespace tessera::cli {

/// What checkpoint::inspect found, in lines for people.
std::string inspection_text(const nlohmann::ordered_json& about);

/// A line for each tensor that is not the same in both, and a summary.
std::string differences_text(const checkpoint::Differences& differences, const std::string& a,
                             const std::string& b);

}  // namespace tessera::cli
