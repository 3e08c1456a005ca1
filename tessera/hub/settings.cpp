#include "tessera/hub/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/letters.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

std::string variable(const char* name, const std::string& absent = "") {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? absent : value;
}

fs::path home() {
  const auto folder = variable("HOME");
  if (folder.empty())
    user_error("HOME is not set: set HF_HUB_CACHE to the folder of cached models");
  return folder;
}

/// A folder from the environment; "~" is the home folder.
fs::path expanded(const std::string& folder) {
  if (folder == "~") return home();
  return folder.starts_with("~/") ? home() / folder.substr(2) : fs::path(folder);
}

fs::path huggingface_home() {
  if (const auto folder = variable("HF_HOME"); !folder.empty()) return expanded(folder);
  const auto cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? home() / ".cache" : expanded(cache)) / "huggingface";
}

fs::path cache_folder() {
  const auto folder = variable("HF_HUB_CACHE");
  return folder.empty() ? huggingface_home() / "hub" : expanded(folder);
}

std::string token_in(std::string text, const std::string& where) {
  const auto is_blank = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_blank).base(), text.end());
  text.erase(text.begin(), std::ranges::find_if_not(text, is_blank));
  // It becomes a line of a request: nothing may follow it there.
  if (!std::ranges::all_of(text, [](unsigned char c) { return std::isgraph(c) != 0; })) {
    user_error("{}: expected a token of one word", where);
  }
  return text;
}

std::string token() {
  if (const auto text = variable("HF_TOKEN"); !text.empty()) return token_in(text, "HF_TOKEN");
  const auto path = variable("HF_TOKEN_PATH");
  const bool has_home =
      !(variable("HF_HOME") + variable("XDG_CACHE_HOME") + variable("HOME")).empty();
  if (path.empty() && !has_home) return "";
  const auto file = path.empty() ? huggingface_home() / "token" : expanded(path);
  std::error_code unreadable;  // another user's home
  return fs::is_regular_file(file, unreadable) ? token_in(read_file(file), file.string()) : "";
}

bool is_on(const char* name) {
  const auto value = lower_case(variable(name));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

}  // namespace

Settings settings_from_environment() {
  Settings settings{.cache = cache_folder(), .token = token()};
  settings.endpoint = variable("HF_ENDPOINT", settings.endpoint);
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  settings.offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  return settings;
}

}  // namespace tessera::hub
