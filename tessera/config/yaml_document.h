// One YAML text (JSON is one, too) as yaml-cpp's nodes, which know their lines.
#pragma once

#include <yaml-cpp/node/node.h>

#include <string>

#include "tessera/config/values.h"

namespace tessera::config {

/// The one document of a text. UserError: line and column of what is not YAML; a second document.
YAML::Node parse_yaml(const std::string& file, const std::string& text);

/// What stands after a key.
RawValue raw_value(const YAML::Node& node);

/// "job.yaml:12".
std::string line_of(const std::string& file, const YAML::Node& node);

}  // namespace tessera::config
