#include "tessera/chat/load.h"

#include <algorithm>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"

namespace tessera::chat {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void add_template(ModelTemplates& templates, const std::string& name, const std::string& where,
                  const std::string& source) {
  templates.by_name.insert_or_assign(name, ChatTemplate(where, source));
}

/// chat_template of tokenizer_config.json.
void add_from_config(ModelTemplates& templates, const fs::path& path, const json& value) {
  const auto where = path.string() + ": chat_template";
  if (value.is_string()) return add_template(templates, "default", where, value.get<std::string>());
  const auto is_named = [](const json& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
           entry.contains("template") && entry["template"].is_string();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_named)) {
    user_error("{}: expected a string, or a list of objects with name and template", where);
  }
  for (const auto& entry : value) {
    const auto name = entry["name"].get<std::string>();
    add_template(templates, name, where + " " + json(name).dump(),
                 entry["template"].get<std::string>());
  }
}

/// Special tokens are strings, or objects with their text under "content".
void add_variables(ModelTemplates& templates, const fs::path& path, const json& config) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string()) templates.variables[key] = value.get<std::string>();
    if (!value.is_object()) continue;
    if (!value.contains("content") || !value["content"].is_string()) {
      user_error("{}: {}: expected a string, or an object with a string content", path.string(),
                 key);
    }
    templates.variables[key] = value["content"].get<std::string>();
  }
}

void add_files(ModelTemplates& templates, const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths)
    add_template(templates, path.stem().string(), path.string(), read_file(path));
}

}  // namespace

const ChatTemplate& ModelTemplates::choose(const std::optional<std::string>& name,
                                           bool has_tools) const {
  auto found = by_name.find(
      name.value_or(has_tools && by_name.contains("tool_use") ? "tool_use" : "default"));
  if (found == by_name.end() && !name && by_name.size() == 1) found = by_name.begin();
  if (found != by_name.end()) return found->second;
  std::string names;
  for (const auto& [known, unused] : by_name) names += (names.empty() ? "" : ", ") + known;
  user_error("chat template {}: expected one of those that the model has: {}",
             name.value_or("default"), names.empty() ? "none" : names);
}

ModelTemplates load_templates(const fs::path& folder) {
  ModelTemplates templates;
  if (const auto path = folder / "tokenizer_config.json"; fs::exists(path)) {
    const auto config = parse_strict_json(path, read_file(path));
    if (!config.is_object()) user_error("{}: expected an object", path.string());
    add_variables(templates, path, config);
    if (config.contains("chat_template") && !config["chat_template"].is_null()) {
      add_from_config(templates, path, config["chat_template"]);
    }
  }
  if (const auto path = folder / "chat_template.json"; fs::exists(path)) {
    const auto file = parse_strict_json(path, read_file(path));
    if (!file.is_object() || !file.contains("chat_template"))
      user_error("{}: expected an object with chat_template", path.string());
    add_from_config(templates, path, file["chat_template"]);
  }
  if (const auto path = folder / "chat_template.jinja"; fs::exists(path)) {
    add_template(templates, "default", path.string(), read_file(path));
  }
  add_files(templates, folder / "additional_chat_templates");
  add_files(templates, folder / "chat_templates");
  return templates;
}

}  // namespace tessera::chat
