// One value of an Accelerate configuration, checked and written in one way.
#pragma once

#include <string>

#include "tessera/config/accelerate/keys.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {

/// `raw` as Setting::value holds it: true and false for every way to say so, whole numbers without
/// exponent, a choice in the table's spelling (or by its number, as FSDP's enumerations may be), a
/// list as [a, 'b, c']. UserError "<where>: <key>: expected .., got ..".
std::string normal_value(const Key& key, const RawValue& raw, const std::string& where);

/// `text` in single quotes, as YAML reads it back.
std::string in_yaml_quotes(const std::string& text);

}  // namespace tessera::config::accelerate
