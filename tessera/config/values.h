// One value of the field list: from text or YAML into its slot, and back into YAML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/quoted.h"
#include "tessera/config/fields.h"

namespace tessera::config {

/// A value as it stands in the job file or on the command line, before its type is known.
struct RawValue {
  enum class Kind { null, scalar, list, map, other };
  Kind kind = Kind::null;
  std::string text;                ///< of a scalar; of `map` and `other`: what it is ("a mapping")
  bool quoted = false;             ///< scalar in quotes: a text whatever it looks like
  std::vector<std::string> items;  ///< of a list
  std::vector<std::pair<std::string, std::string>> entries;  ///< of a map, as they stand there
};

/// Writes `raw` into the field's slot. UserError "<where>: expected .., got .." on a wrong type or
/// an impossible value.
void set_field(const Field& field, const RawValue& raw, const std::string& where,
               RunConfig& config);

/// Copies one value.
void copy_field(const Field& field, const RunConfig& from, RunConfig& to);

/// The field's value in YAML; set_field reads it back to the same value.
std::string yaml_value(const Field& field, const RunConfig& config);

/// Is it what a job file without the key has?
bool is_default(const Field& field, const RunConfig& config);

/// "integer", "number", "true/false", "text", "list", "list of integers", "mapping to integers" or "true/false, or integer".
std::string type_name(const Field& field);

/// What is allowed, in words: ">= 1, or -1", "in [0, 1)", "adamw, sgd"; "" if anything of the type
/// is.
std::string allowed_values(const Field& field);

/// What is allowed, in words: ">= 1, or -1", "in [0, 1)"; "" if any number is.
std::string allowed_values(const Range& range);

bool in_range(double x, const Range& range);

/// A text as YAML reads it: "+1e3" is a whole number, "off" is false; nothing if it is of another
/// type, or not finite.
std::optional<double> parse_number(std::string_view text);
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<bool> parse_bool(const std::string& text);

}  // namespace tessera::config
