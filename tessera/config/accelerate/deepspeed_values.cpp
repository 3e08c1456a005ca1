#include "tessera/config/accelerate/deepspeed_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/base/nearest.h"
#include "tessera/config/accelerate/deepspeed_json.h"
#include "tessera/config/accelerate/deepspeed_keys.h"
#include "tessera/config/accelerate/normal_value.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAuto = "auto";

// ---- names -------------------------------------------------------------------------------------

std::string last_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// The key that was most likely meant: one of that name in another section, else the nearest.
std::string suggestion(const std::string& path) {
  constexpr size_t kLongest = 80;  // a longer one is no slip; the edit distance would take its time
  if (path.size() > kLongest) return "";
  std::vector<std::string> all;
  for (const auto& key : deepspeed_file_keys()) {
    if (last_name(key.path()) == last_name(path))
      return fmt::format("; did you mean '{}'?", key.path());
    all.push_back(key.path());
  }
  return did_you_mean(path, all);
}

// ---- values ------------------------------------------------------------------------------------

std::string as_written(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string scalar_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : as_written(value);
}

RawValue raw_value(const Json& value) {
  using Kind = RawValue::Kind;
  if (value.is_object()) return {.kind = Kind::other, .text = "an object"};
  if (!value.is_array()) {
    return {.kind = Kind::scalar, .text = scalar_text(value), .quoted = value.is_string()};
  }
  RawValue raw{.kind = Kind::list};
  for (const auto& item : value) raw.items.push_back(scalar_text(item));
  return raw;
}

Setting checked(const JsonLine& line, const std::string& origin) {
  Setting setting{.key = line.key, .origin = origin, .is_null = line.value.is_null()};
  // DeepSpeed's first name of the section.
  if (setting.key.starts_with("bfloat16.")) setting.key.replace(0, 8, "bf16");
  const auto* key = find_deepspeed_file_key(setting.key);
  const bool is_section = is_deepspeed_section(setting.key);
  if (key == nullptr && !is_section) {
    user_error("{}: unknown key {}{}", origin, tessera::quoted(setting.key),
               suggestion(setting.key));
  }
  if (setting.is_null) return setting;
  if (is_section && !line.value.is_object()) {
    user_error("{}: {}: expected an object, as {{\"enabled\": false}}, got {}", origin, setting.key,
               tessera::quoted(as_written(line.value)));
  }
  if (is_section || key->rule == DeepspeedKey::Rule::section) {
    const Key any{.name = setting.key};
    setting.value = line.value.is_string() ? normal_value(any, raw_value(line.value), origin)
                                           : as_written(line.value);
  } else if (line.value == kAuto && !key->auto_means.empty()) {
    setting.value = kAuto;
  } else {
    setting.value = normal_value(key->key, raw_value(line.value), origin);
  }
  return setting;
}

// ---- Accelerate's own keys ---------------------------------------------------------------------

/// Keys of DeepSpeed's whose value Accelerate's file may say, too, each with the key there.
const std::map<std::string, std::string>& twins() {
  static const std::map<std::string, std::string> names{
      {"gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"},
      {"gradient_clipping", "deepspeed_config.gradient_clipping"},
      {"zero_optimization.stage", "deepspeed_config.zero_stage"},
      {"zero_optimization.offload_optimizer.device", "deepspeed_config.offload_optimizer_device"},
      {"zero_optimization.offload_param.device", "deepspeed_config.offload_param_device"},
      {"zero_optimization.offload_optimizer.nvme_path",
       "deepspeed_config.offload_optimizer_nvme_path"},
      {"zero_optimization.offload_param.nvme_path", "deepspeed_config.offload_param_nvme_path"},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       "deepspeed_config.zero3_save_16bit_model"}};
  return names;
}

/// What Accelerate's file says of this key, if it says it; nullopt otherwise.
std::optional<Setting> said_by(const Settings& settings, const std::string& key) {
  if (key == "fp16.enabled" || key == "bf16.enabled") {
    const auto* precision = settings.find("mixed_precision");
    // 'no' is what a launcher exports when nothing was asked for.
    if (precision == nullptr || lower_case(precision->value) == "no") return {};
    auto setting = *precision;
    setting.value = key.starts_with(lower_case(precision->value)) ? "true" : "false";
    return setting;
  }
  const auto twin = twins().find(key);
  const auto* setting = twin == twins().end() ? nullptr : settings.find(twin->second);
  return setting == nullptr ? std::nullopt : std::optional(*setting);
}

bool same_value(const std::string& a, const std::string& b) {
  const auto x = parse_number(a), y = parse_number(b);
  return x && y ? *x == *y : lower_case(a) == lower_case(b);
}

void check_against(const Settings& settings, const Setting& setting) {
  const auto said = said_by(settings, setting.key);
  if (!said || same_value(said->value, setting.value)) return;
  const auto* theirs = settings.find(said->key);
  user_error("{}: {} {} contradicts {} {} ({}); keep one of them, or write \"auto\" here",
             setting.origin, setting.key, setting.value, theirs->key, theirs->value,
             theirs->origin);
}

// ---- keys that belong together -----------------------------------------------------------------

void check_precisions(const DeepspeedValues& values) {
  const Setting* first = nullptr;
  for (const auto* key : {"fp16.enabled", "bf16.enabled", "torch_autocast.enabled"}) {
    if (!values.flag(key)) continue;
    const auto* setting = values.find(key);
    if (first != nullptr) {
      user_error("{}: {} contradicts {} ({}); keep one of them", setting->origin, key, first->key,
                 first->origin);
    }
    first = setting;
  }
}

void check_batch(const DeepspeedValues& values) {
  const auto batch = batch_of(values);
  if (!batch.global) return;
  int64_t product = 1;
  std::vector<std::string> factors;
  const auto multiply = [&](std::optional<int64_t> factor, const Setting* setting) {
    if (!factor || setting == nullptr) return;
    product = *factor > INT64_MAX / product ? INT64_MAX : product * *factor;
    factors.push_back(fmt::format("{} {} ({})", setting->key, *factor, setting->origin));
  };
  multiply(batch.micro, values.find("train_micro_batch_size_per_gpu"));
  multiply(batch.accumulation, values.find("gradient_accumulation_steps"));
  multiply(batch.processes, values.settings().find("num_processes"));
  const bool whole = factors.size() == 3;
  if (whole ? *batch.global == product : *batch.global % product == 0) return;
  const auto* total = values.find("train_batch_size");
  user_error("{}: train_batch_size {} is {} {}; change one of them", total->origin, *batch.global,
             whole ? "not" : "no multiple of", fmt::join(factors, " x "));
}

}  // namespace

DeepspeedValues::DeepspeedValues(const std::filesystem::path& file, const Settings& settings)
    : file_(file.string()), settings_(settings) {
  for (const auto& line : read_json_lines(file)) {
    auto setting = checked(line, fmt::format("{}:{}", file_, line.line));
    written_.push_back(setting);
    if (setting.is_null) continue;
    if (setting.value == kAuto) {
      const auto& means = find_deepspeed_file_key(setting.key)->auto_value;
      const auto said = said_by(settings, setting.key);
      if (!said && means.empty()) continue;
      setting.value = said ? said->value : means;
    } else {
      check_against(settings, setting);
    }
    effective_[setting.key] = std::move(setting);
  }
  const bool has_zero = std::ranges::any_of(written_, [](const Setting& setting) {
    return setting.key.starts_with("zero_optimization");
  });
  if (!has_zero) {
    user_error(
        "{}: expected a key \"zero_optimization\", as {{\"zero_optimization\": "
        "{{\"stage\": 2}}}}; Accelerate needs it, too",
        file_);
  }
  check_precisions(*this);
  check_batch(*this);
}

const Setting* DeepspeedValues::find(const std::string& key) const {
  const auto found = effective_.find(key);
  return found == effective_.end() ? nullptr : &found->second;
}

std::string DeepspeedValues::text(const std::string& key, const std::string& absent) const {
  const auto* setting = find(key);
  return setting == nullptr ? absent : setting->value;
}

std::optional<int64_t> DeepspeedValues::integer(const std::string& key) const {
  const auto* setting = find(key);
  if (setting == nullptr) return {};
  return parse_integer(setting->value);
}

DeepspeedBatch batch_of(const DeepspeedValues& values) {
  DeepspeedBatch batch{.global = values.integer("train_batch_size"),
                       .micro = values.integer("train_micro_batch_size_per_gpu"),
                       .accumulation = values.integer("gradient_accumulation_steps"),
                       .processes = {}};
  if (values.settings().find("num_processes") != nullptr) {
    const auto processes = values.settings().integer("num_processes");
    if (processes > 0) batch.processes = processes;
  }
  return batch;
}

}  // namespace tessera::config::accelerate
