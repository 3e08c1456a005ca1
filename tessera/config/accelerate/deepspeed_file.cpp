#include "tessera/config/accelerate/deepspeed_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/config/accelerate/deepspeed_keys.h"
#include "tessera/config/accelerate/deepspeed_values.h"

namespace tessera::config::accelerate {
namespace {

Decision decide_by_rule(const DeepspeedKey& key, const DeepspeedValues& values,
                        const Setting& setting) {
  switch (key.rule) {
    case DeepspeedKey::Rule::ignored:
      return not_applicable(key.note);
    case DeepspeedKey::Rule::only: {
      const bool accepted = std::ranges::find(key.accepted, setting.value) != key.accepted.end();
      return accepted ? honoured() : refused(key.note);
    }
    case DeepspeedKey::Rule::decided:
      return key.decide(values, setting);
    case DeepspeedKey::Rule::section:
      break;
  }
  if (values.text(key.path() + ".enabled", "") != "false") return refused(key.note);
  return not_applicable(key.path() + ".enabled is false");
}

Decision decide(const DeepspeedValues& values, const Setting& setting) {
  if (setting.is_null) return honoured("not set");
  if (setting.value == "{}") return honoured("holds no keys");
  const auto& key = *find_deepspeed_file_key(setting.key);
  const auto* value = values.find(setting.key);
  if (value == nullptr && key.rule == DeepspeedKey::Rule::ignored) return not_applicable(key.note);
  if (value == nullptr) return honoured("auto: " + key.auto_means);
  auto decision = decide_by_rule(key, values, *value);
  if (value->value == setting.value) return decision;
  const auto filled = fmt::format("auto, so {}", value->value);
  decision.note = decision.note.empty() ? filled : decision.note + "; " + filled;
  return decision;
}

}  // namespace

void translate_deepspeed_file(const std::filesystem::path& file, const Settings& settings,
                              Translation& translation) {
  const DeepspeedValues values(file, settings);
  // Without a stage nothing is sharded, whatever Accelerate's own default is.
  if (values.find("zero_optimization.stage") == nullptr) {
    translation.job.push_back({"parallel.placement", "replicate", values.file()});
  }
  if (const auto* steps = values.find("gradient_accumulation_steps")) {
    translation.accumulation = *steps;
  }
  for (const auto& setting : values.all()) {
    const auto decision = decide(values, setting);
    translation.ledger.push_back({setting, decision.verdict, note_of(decision)});
    for (const auto& [key, value] : decision.job) {
      translation.job.push_back({key, value, setting.origin, decision.if_effective});
    }
  }
}

}  // namespace tessera::config::accelerate
