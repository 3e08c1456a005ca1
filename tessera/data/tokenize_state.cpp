#include "tessera/data/tokenize_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::data {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_state(const std::filesystem::path& out, const std::string& why) {
  user_error("{}: {}; remove it and {} to begin anew", state_name(out).string(), why,
             partial_name(out).string());
}

bool is_count(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 62;
}

int64_t sum_of(const json& counts) {
  int64_t sum = 0;
  for (const auto& each : counts) sum += each.get<int64_t>();
  return sum;
}

}  // namespace

std::filesystem::path state_name(const std::filesystem::path& out) {
  return partial_name(out) += ".json";
}

void save_state(const std::filesystem::path& out, const TokenizeSettings& settings,
                const TokenizeState& state) {
  json of = json::object();
  for (const auto& [name, value] : settings) of[name] = value;
  const json file = {{"settings", of},
                     {"file", state.next.file},
                     {"byte", state.next.byte},
                     {"continues", state.next.continues},
                     {"done_bytes", state.done_bytes},
                     {"tokens", state.written.num_tokens},
                     {"documents", state.written.documents}};
  write_file(state_name(out), file.dump(1) + "\n");
}

std::optional<TokenizeState> load_state(const std::filesystem::path& out,
                                        const TokenizeSettings& settings, size_t num_files) {
  const auto path = state_name(out);
  if (!is_there(path)) return std::nullopt;
  const auto file = json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  const auto value = [&](const char* key) {
    return file.is_object() && file.contains(key) ? file[key] : json();
  };
  const auto of = value("settings"), documents = value("documents");
  for (const auto& [name, wanted] : settings) {
    if (!of.is_object() || !of.contains(name) || !of[name].is_string())
      refuse_state(out,
                   fmt::format("expected the settings of an interrupted run, got no {}", name));
    if (of[name] != wanted)
      refuse_state(out, fmt::format("the interrupted run had other settings: {} {}, now {}", name,
                                    of[name].get<std::string>(), wanted));
  }
  const bool counts = is_count(value("file")) && is_count(value("byte")) &&
                      is_count(value("done_bytes")) && is_count(value("tokens"));
  if (!counts || !value("continues").is_boolean() || !documents.is_array() ||
      !std::all_of(documents.begin(), documents.end(), is_count) ||
      value("file").get<uint64_t>() > num_files ||
      sum_of(documents) > value("tokens").get<int64_t>())
    refuse_state(out, "expected how far an interrupted run was, got something else");
  return TokenizeState{
      {value("file").get<size_t>(), value("byte").get<int64_t>(), value("continues").get<bool>()},
      value("done_bytes").get<int64_t>(),
      {value("tokens").get<int64_t>(), documents.get<std::vector<int64_t>>()}};
}

}  // namespace tessera::data
