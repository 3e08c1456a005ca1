#include "tessera/config/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/pattern.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

/// What all levels of MS-AMP share.
Values msamp(Values more) {
  Values values{{"precision.compute", "fp16"},      {"precision.autocast", "false"},
                {"precision.reduce", "fp32"},       {"precision.parameters", "fp16"},
                {"precision.gradients", "fp8"},     {"precision.communication", "fp8"},
                {"precision.matmul", "fp8_tensor"}, {"precision.stochastic_rounding", "true"}};
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

bool weights_are_cast_at_use(const PrecisionSection& section) {
  return section.compute == FloatType::fp32 || section.autocast;
}

/// What whole weights are kept and gathered in.
FloatType whole_type(const PrecisionSection& section) {
  return weights_are_cast_at_use(section) ? section.parameters : section.compute;
}

FloatType gradient_type(const PrecisionSection& section) {
  return weights_are_cast_at_use(section) ? section.parameters : section.reduce;
}

}  // namespace

Values values_of(PrecisionPreset preset) {
  const std::pair<std::string, std::string> states{"precision.optimizer_states", "fp8+fp16"},
      full_states{"precision.optimizer_states", "fp32"}, weights{"precision.weights", "fp8"},
      half_weights{"precision.weights", "as_compute"};
  switch (preset) {
    case PrecisionPreset::none:
      return {};
    case PrecisionPreset::fp16_amp:
      return {{"precision.compute", "fp16"},
              {"precision.autocast", "true"},
              {"precision.parameters", "fp32"},
              {"precision.gradients", "as_reduce"},
              {"precision.communication", "as_reduce"},
              {"precision.matmul", "as_compute"},
              full_states,
              half_weights};
    case PrecisionPreset::te:
      return {{"precision.compute", "bf16"},
              {"precision.autocast", "true"},
              {"precision.parameters", "fp32"},
              {"precision.gradients", "as_reduce"},
              {"precision.communication", "as_reduce"},
              {"precision.matmul", "fp8_delayed"},
              full_states,
              half_weights};
    case PrecisionPreset::msamp_o1:
      return msamp({full_states, half_weights});
    case PrecisionPreset::msamp_o2:
      return msamp({states, half_weights});
    case PrecisionPreset::msamp_o3:
      return msamp({states, weights});
  }
  __builtin_unreachable();
}

void apply_preset(LoadedConfig& loaded) {
  const auto preset = loaded.config.precision.preset;
  const auto where = fmt::format("precision.preset {}", text_of(preset));
  for (const auto& [key, value] : values_of(preset)) {
    const auto& field = *find_field(key);
    auto& origin = loaded.origins.at(key);
    RunConfig wanted;
    set_field(field, {.kind = RawValue::Kind::scalar, .text = value}, where, wanted);
    if (origin != "default" && yaml_value(field, loaded.config) != yaml_value(field, wanted)) {
      user_error("{}: {}: expected {}, as precision.preset {} has it, got {}; remove one of them",
                 origin == kCommandLine ? "command line" : origin, key, value, text_of(preset),
                 yaml_value(field, loaded.config));
    }
    copy_field(field, wanted, loaded.config);
    if (origin == "default") origin = where;
  }
}

bool reduces_each(const RunConfig& config) {
  return parallel::frees_gradients(config.parallel.placement) ||
         config.precision.has_fp8_gradients();
}

bool keeps_layer(const std::string& entry, const std::string& path, bool at_end) {
  return entry == "first_last" ? at_end : matches(entry, path);
}

bool keeps_losers(const PrecisionSection& section) {
  return std::ranges::find(section.fp8_keep, "auto") != section.fp8_keep.end();
}

PrecisionRow precision_row(const PrecisionSection& section) {
  const auto text = [](auto type) { return std::string(text_of(type)); };
  const auto whole = whole_type(section);
  const auto gradient = text(gradient_type(section));
  const auto weight = section.has_fp8_weights() ? "fp8" : text(whole);
  const auto states = text(section.optimizer_states);
  return {.gemm = section.matmul == Matmul::as_compute ? text(section.compute) : "fp8",
          .communication = section.sends_fp8() ? "fp8" : gradient,
          .weight = weight,
          .master_weight = weight == text(section.parameters) ? "none" : text(section.parameters),
          .gradient = section.has_fp8_gradients() ? "fp8" : gradient,
          .states = states == "fp8+fp16" ? states : states + "+" + states};
}

namespace {

struct NamedCell {
  const char* name;
  std::string PrecisionRow::*cell;
};
constexpr std::array<NamedCell, 6> kCells{{{"GEMM", &PrecisionRow::gemm},
                                           {"communication", &PrecisionRow::communication},
                                           {"weight", &PrecisionRow::weight},
                                           {"master weight", &PrecisionRow::master_weight},
                                           {"weight gradient", &PrecisionRow::gradient},
                                           {"optimizer states", &PrecisionRow::states}}};

}  // namespace

std::string row_text(const PrecisionRow& row) {
  std::string text;
  for (const auto& [name, cell] : kCells) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, row.*cell);
  }
  return text;
}

nlohmann::json to_json(const PrecisionRow& row) {
  nlohmann::json json;
  for (const auto& [name, cell] : kCells) json[name] = row.*cell;
  return json;
}

std::optional<PrecisionRow> stored_precision(const nlohmann::json& state) {
  const auto stored = state.find("precision");
  if (stored == state.end() || !stored->is_object()) return std::nullopt;
  PrecisionRow row;
  for (const auto& [name, cell] : kCells) {
    const auto found = stored->find(name);
    if (found == stored->end() || !found->is_string()) return std::nullopt;
    row.*cell = found->get<std::string>();
  }
  return row;
}

std::string weights_note(const PrecisionRow& row) {
  const auto& updated = row.master_weight == "none" ? row.weight : row.master_weight;
  if (row.weight == "fp8") {
    return fmt::format(
        "it computed with weights of 8 bits; these are the {} weights behind them, not rounded to "
        "8 bits",
        updated);
  }
  if (row.gemm != "fp8") return "";
  return fmt::format(
      "its products rounded what they read to 8 bits; these are its {} weights, not rounded to 8 "
      "bits",
      updated);
}

double bytes_per_parameter(const PrecisionSection& section) {
  const auto row = precision_row(section);
  const double whole = section.has_fp8_weights() ? 1 : bytes_of(whole_type(section));
  const double master = row.master_weight == "none" ? 0 : bytes_of(section.parameters);
  const double gradient = section.has_fp8_gradients() ? 1 : bytes_of(gradient_type(section));
  const bool in_blocks = section.optimizer_states == optim::StateType::fp8_fp16;
  return whole + master + gradient +
         optim::state_bytes(optim::OptimizerType::adamw,
                            in_blocks ? optim::Treatment::blocks : optim::Treatment::elements,
                            /*momentum=*/0, section.optimizer_states);
}

}  // namespace tessera::config
