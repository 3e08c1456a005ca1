#include "tessera/models/json_keys.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/quoted.h"
#include "tessera/base/strict_json.h"

namespace tessera::models {

using Json = nlohmann::json;

namespace {

std::string shortened(const Json& value) {
  return quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json read_json_object(const std::filesystem::path& path, const std::string& expected) {
  Json json;
  try {
    json = parse_strict_json(path, read_file(path));
  } catch (const JsonSyntaxError& error) {
    user_error("{}: expected JSON; it stops being JSON at byte {}", path.string(), error.byte());
  }
  if (!json.is_object())
    user_error("{}: expected a JSON object with {}, got {}", path.string(), expected,
               shortened(json));
  return json;
}

bool JsonKeys::has(const std::string& key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

bool JsonKeys::is_null(const std::string& key) const {
  return object_.contains(key) && object_.at(key).is_null();
}

const Json& JsonKeys::at(const std::string& key) const {
  if (!has(key)) user_error("{}: {}: expected a value, got none", where_, key);
  return object_.at(key);
}

JsonKeys JsonKeys::child(const std::string& key) const {
  if (!at(key).is_object()) wrong(key, "an object");
  return JsonKeys(where_ + ": " + key, at(key));
}

int64_t JsonKeys::size(const std::string& key, std::optional<int64_t> absent, int64_t least) const {
  if (absent && !has(key)) return *absent;
  const auto& value = at(key);
  const bool whole = value.is_number_integer() &&
                     !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!whole || value.get<int64_t>() < least)
    wrong(key, fmt::format("a whole number >= {}", least));
  return value.get<int64_t>();
}

double JsonKeys::positive(const std::string& key, std::optional<double> absent) const {
  if (absent && !has(key)) return *absent;
  if (!at(key).is_number() || !(at(key).get<double>() > 0)) wrong(key, "a number > 0");
  return at(key).get<double>();
}

bool JsonKeys::flag(const std::string& key, bool absent) const {
  if (!has(key)) return absent;
  if (!at(key).is_boolean()) wrong(key, "true or false");
  return at(key).get<bool>();
}

std::string JsonKeys::text(const std::string& key, std::optional<std::string> absent) const {
  if (absent && !has(key)) return *absent;
  if (!at(key).is_string()) wrong(key, "a text");
  return at(key).get<std::string>();
}

void JsonKeys::refuse_unless(bool supported, const std::string& key,
                             const std::string& expected) const {
  if (!supported) {
    user_error("{}: {}: {} is not supported; expected {}", where_, key, shortened(at(key)),
               expected);
  }
}

void JsonKeys::wrong(const std::string& key, const std::string& expected) const {
  user_error("{}: {}: expected {}, got {}", where_, key, expected, shortened(at(key)));
}

}  // namespace tessera::models
