// What stands beside a tokenizer's file and says more of it.
#include "tessera/base/file.h"
#include "tessera/text/load_steps.h"

namespace tessera::text {
namespace fs = std::filesystem;

ConfigBeside config_beside(const fs::path& path) {
  ConfigBeside config{path.parent_path() / "tokenizer_config.json", nlohmann::json::object()};
  if (!fs::exists(config.path)) return config;
  config.json = parse_json(config.path, read_file(config.path));
  JsonNode(config.path.string(), config.json).expect_object();
  return config;
}

std::optional<uint32_t> end_of_text_beside(const fs::path& path, const Tokenizer& tokenizer) {
  for (const auto* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto file = path.parent_path() / name;
    if (!fs::exists(file)) continue;
    const auto json = parse_json(file, read_file(file));
    const JsonNode node(file.string(), json);
    node.expect_object();
    auto token = node["eos_token"];
    if (token.value().is_object()) token = token["content"];
    if (token.is_null()) continue;
    const auto id = tokenizer.id_of(token.text());
    if (!id) token.refuse("a token of " + path.filename().string());
    return id;
  }
  return std::nullopt;
}

}  // namespace tessera::text
