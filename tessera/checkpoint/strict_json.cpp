#include "tessera/checkpoint/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

using nlohmann::json;

json parse_strict_json(const std::filesystem::path& path, std::string_view text) {
  // The parser takes a NUL for the end of the text and would accept anything after it.
  if (text.find('\0') != std::string_view::npos)
    user_error("{}: a NUL byte in its JSON", path.string());
  constexpr int kMaxDepth = 64;  // the parser keeps no stack, but what walks its result does
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) user_error("{}: its JSON is nested too deep", path.string());
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      user_error("{}: the key {} stands twice in its JSON", path.string(), parsed.dump());
    }
    return true;
  };
  try {
    return json::parse(text, callback);
  } catch (const json::parse_error& error) {
    user_error("{}: expected JSON in UTF-8, got an error at byte {} of it", path.string(),
               error.byte);
  } catch (const json::out_of_range&) {
    user_error("{}: a number in its JSON is too large", path.string());
  }
}

}  // namespace tessera::checkpoint
