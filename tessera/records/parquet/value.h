// Values as JSON.
#pragma once

#include <string>
#include <string_view>

#include "tessera/records/parquet/schema.h"
#include "tessera/records/row.h"

namespace tessera::records::parquet {

/// What JSON has no type for is a text: times as ISO 8601, decimals with all their digits, UUIDs,
/// bytes in base64. NaN and infinities are null. `error` says why there is no value, e.g. a text
/// that is no UTF-8.
Json value_as_json(const Node& leaf, std::string_view bytes, std::string& error);

}  // namespace tessera::records::parquet
