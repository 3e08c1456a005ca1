#include "tessera/inference/settings.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"

namespace tessera::inference {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kTemperature = 0.7;

/// generation_config.json; what is null in it is not there.
class GenerationConfig {
 public:
  explicit GenerationConfig(const fs::path& folder) : path_(folder / "generation_config.json") {
    if (folder.empty() || !fs::is_regular_file(path_)) return;
    values_ = parse_strict_json(path_, read_file(path_));
    if (!values_.is_object()) user_error("{}: expected an object", path_.string());
  }

  const json* find(const char* key) const {
    const auto found = values_.find(key);
    return found == values_.end() || found->is_null() ? nullptr : &*found;
  }

  /// A number from `least` to `most`.
  std::optional<double> number(const char* key, double least, double most) const {
    const auto* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_number() || !(*value >= least && *value <= most)) refuse(key, *value);
    return value->get<double>();
  }

  std::optional<bool> flag(const char* key) const {
    const auto* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_boolean()) refuse(key, *value);
    return value->get<bool>();
  }

  /// A token, or a list of them.
  std::vector<int64_t> tokens(const char* key) const {
    const auto* value = find(key);
    std::vector<int64_t> tokens;
    if (value == nullptr) return tokens;
    for (const auto& token : value->is_array() ? *value : json::array({*value})) {
      if (!token.is_number_integer()) refuse(key, *value);
      tokens.push_back(token.get<int64_t>());
    }
    return tokens;
  }

  /// A line that names what is asked for and not done.
  std::string not_done() const {
    // What would change a text in transformers, and the value with which it does not.
    static const std::pair<const char*, json> kNotDone[] = {
        {"bad_words_ids", json::array()},
        {"begin_suppress_tokens", json::array()},
        {"constraints", json::array()},
        {"encoder_repetition_penalty", 1},
        {"epsilon_cutoff", 0},
        {"eta_cutoff", 0},
        {"exponential_decay_length_penalty", json::array()},
        {"force_words_ids", json::array()},
        {"forced_bos_token_id", nullptr},
        {"forced_eos_token_id", nullptr},
        {"guidance_scale", 1},
        {"min_length", 0},
        {"min_new_tokens", 0},
        {"no_repeat_ngram_size", 0},
        {"num_beams", 1},
        {"penalty_alpha", 0},
        {"sequence_bias", json::object()},
        {"stop_strings", json::array()},
        {"suppress_tokens", json::array()},
        {"typical_p", 1}};
    std::vector<std::string> keys;
    for (const auto& [key, without] : kNotDone) {
      const auto* value = find(key);
      if (value != nullptr && *value != without) keys.emplace_back(key);
    }
    if (keys.empty()) return "";
    return fmt::format("{}: not done: {}; transformers may write another text", path_.string(),
                       fmt::join(keys, ", "));
  }

 private:
  [[noreturn]] void refuse(const char* key, const json& value) const {
    user_error("{}: {}: {} is not what this may be; mend it, or give the option", path_.string(),
               key, value.dump());
  }

  fs::path path_;
  json values_ = json::object();
};

}  // namespace

Settings settings_of(const Request& request, const fs::path& assets) {
  constexpr double kAny = 1e9;
  const GenerationConfig stored(assets);
  generate::SamplingOptions sampling{.seed = request.seed};
  const auto set = [](auto& value, const auto& asked, const auto& in_file) {
    if (asked || in_file) value = asked ? *asked : static_cast<decltype(+value)>(*in_file);
  };
  const auto draws = stored.flag("do_sample");
  sampling.temperature = draws ? *draws : kTemperature;
  const auto temperature = stored.number("temperature", 0, kAny);
  set(sampling.temperature, request.temperature,
      draws == false ? std::optional<double>() : temperature);
  set(sampling.top_k, request.top_k, stored.number("top_k", 0, kAny));
  set(sampling.top_p, request.top_p, stored.number("top_p", 1e-9, 1));
  set(sampling.min_p, request.min_p, stored.number("min_p", 0, 1));
  set(sampling.repetition_penalty, request.repetition_penalty,
      stored.number("repetition_penalty", 1e-9, kAny));
  return {
      .sampling = sampling, .end_tokens = stored.tokens("eos_token_id"), .note = stored.not_done()};
}

}  // namespace tessera::inference
