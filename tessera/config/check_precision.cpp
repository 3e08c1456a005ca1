#include <variant>

#include "tessera/config/needs.h"
#include "tessera/config/place.h"
#include "tessera/config/precision.h"
#include "tessera/config/run_config.h"

namespace tessera::config {

namespace {

/// What to do about a value, which a preset may have set.
std::string instead(const PrecisionSection& section, std::string_view value) {
  return section.preset == PrecisionPreset::none ? fmt::format("this to {}", value)
                                                 : "precision.preset to none";
}

}  // namespace

void check_optimizer_states(const RunConfig& config, const Place& place) {
  const auto& precision = config.precision;
  if (precision.optimizer_states == optim::StateType::fp32 ||
      config.optimizer.type == optim::OptimizerType::adamw)
    return;
  place.error("precision.optimizer_states",
              "{} are states of adamw, and optimizer.type is {}; set that to adamw, or {}",
              text_of(precision.optimizer_states), text_of(config.optimizer.type),
              instead(precision, "fp32"));
}

void check_fp8_storage(const RunConfig& config, const Place& place) {
  const auto& precision = config.precision;
  if (!precision.has_fp8_weights() && !precision.has_fp8_gradients()) return;
  const bool weights = precision.has_fp8_weights();
  const auto* key = weights ? "precision.weights" : "precision.gradients";
  if (offloads(config)) {
    place.error(key,
                "fp8 is not kept on the host; set parallel.offload_params and "
                "parallel.offload_optimizer to false, or {}",
                instead(precision, "its default"));
  }
  if (!weights) return;
  if (has_adapter(config)) {
    place.error(key,
                "an adapter leaves the weights that it stands beside as they are, and frozen; set "
                "{}",
                instead(precision, "as_compute"));
  }
  if (std::holds_alternative<int>(config.parallel.reshard_after_forward)) {
    place.error(key,
                "fp8 is gathered over all ranks; set parallel.reshard_after_forward to true or "
                "false");
  }
}

void check_precision(const RunConfig& config, const Place& place) {
  const auto& precision = config.precision;
  const auto parameters = text_of(precision.parameters);
  if (precision.parameters != FloatType::fp32 && precision.compute != precision.parameters) {
    place.error("precision.parameters",
                "{0} parameters compute in {0}; set precision.compute to {0}, or this to fp32",
                parameters);
  }
  if (precision.parameters != FloatType::fp32 && precision.autocast) {
    place.error("precision.autocast",
                "{} parameters need no cast; remove it, or set precision.parameters to fp32",
                parameters);
  }
  if (precision.autocast && precision.reduce != FloatType::fp32) {
    place.error("precision.reduce", "under autocast gradients are fp32 like the weights; got {}",
                text_of(precision.reduce));
  }
  if (precision.reduce != FloatType::fp32 && precision.reduce != precision.compute) {
    const auto wider = precision.compute == FloatType::fp32
                           ? "as precision.compute is"
                           : fmt::format("or precision.compute {}", text_of(precision.compute));
    place.error("precision.reduce", "expected fp32, {}, got {}", wider, text_of(precision.reduce));
  }
  if (keeps_losers(precision) && precision.matmul == Matmul::as_compute) {
    place.error("precision.fp8_keep",
                "auto goes by what products gain, and precision.matmul is as_compute; set that, or "
                "patterns of layers");
  }
  if (precision.matmul != Matmul::as_compute && config.model.weights != WeightFormat::as_stored) {
    place.error(
        "precision.matmul",
        "{} multiplies by numbers of 16 or 32 bits that it rounds itself, and model.weights {} "
        "keeps codes; set model.weights to as_stored, or {}",
        text_of(precision.matmul), text_of(config.model.weights), instead(precision, "as_compute"));
  }
}

}  // namespace tessera::config
