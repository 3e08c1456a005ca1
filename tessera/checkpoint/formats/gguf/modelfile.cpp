#include "tessera/checkpoint/formats/gguf/modelfile.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/formats/gguf/file.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

json generation_config(const fs::path& assets) {
  const auto path = assets / "generation_config.json";
  if (assets.empty() || !fs::exists(path)) return json::object();
  auto config = parse_strict_json(path, read_file(path));
  if (!config.is_object()) user_error("{}: expected an object", path.string());
  return config;
}

/// Texts of the tokens that end an answer.
std::set<std::string> ends_of(const GgufSource& file, const json& config) {
  std::set<std::string> texts;
  const auto* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return texts;
  const auto& all = std::get<std::vector<GgufValue>>(tokens->held);
  const auto add = [&](uint64_t id) {
    if (id < all.size()) texts.insert(std::get<std::string>(all[id].held));
  };
  if (const auto* end = file.find("tokenizer.ggml.eos_token_id"))
    add(std::get<uint64_t>(end->held));
  const auto ids = config.value("eos_token_id", json());
  for (const auto& id : ids.is_array() ? ids : json::array({ids})) {
    if (id.is_number_unsigned()) add(id.get<uint64_t>());
  }
  return texts;
}

}  // namespace

std::string modelfile(const fs::path& path, const fs::path& assets) {
  const auto config = generation_config(assets);
  const auto name = path.stem().string();
  auto text = fmt::format("# ollama create {} -f {}.Modelfile\nFROM ./{}\n", name, name,
                          path.filename().string());
  constexpr std::array kNames{std::pair{"temperature", "temperature"}, std::pair{"top_k", "top_k"},
                              std::pair{"top_p", "top_p"}, std::pair{"min_p", "min_p"},
                              std::pair{"repetition_penalty", "repeat_penalty"}};
  const bool draws = config.value("do_sample", json()) != false;
  if (!draws) text += "PARAMETER temperature 0\n";
  for (const auto& [key, ollamas] : kNames) {
    const auto value = config.value(key, json());
    const bool of_drawing = std::string_view(key) != "repetition_penalty";
    if (value.is_number() && (draws || !of_drawing))
      text += fmt::format("PARAMETER {} {}\n", ollamas, value.dump());
  }
  for (const auto& end : ends_of(GgufSource(path), config)) {
    const bool quotable = end.find_first_of("\"\\\n\r") == std::string::npos;
    if (!end.empty() && quotable) text += fmt::format("PARAMETER stop \"{}\"\n", end);
  }
  return text;
}

}  // namespace tessera::checkpoint
