// An adapter's settings as the index of a checkpoint keeps them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/models/adapter.h"

namespace tessera::models {

/// {"type": "lora", "rank": 8, ..}: the members of AdapterSpec by their names.
nlohmann::json to_json(const AdapterSpec& spec);

/// UserError with `where`: a member that is missing or of another type.
AdapterSpec adapter_spec_of(const nlohmann::json& json, const std::string& where);

}  // namespace tessera::models
