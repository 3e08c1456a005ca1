// 8-bit products in a run: which layers, and the scales that they carry from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/models/language_model.h"
#include "tessera/plan/fp8_layers.h"
#include "tessera/report/sink.h"

namespace tessera::train {

struct Run;

/// A linear layer that multiplies as precision.matmul says.
struct Fp8Layer {
  std::string path;                ///< "model.layers.0.mlp.up_proj"
  int64_t block = 0;               ///< of the model
  bool is_here = true;             ///< in a stage of this rank
  kernels::Fp8WatchPtr watch;      ///< null if precision.matmul is as_compute
  kernels::Fp8HistoryPtr history;  ///< of fp8_delayed; null else
};

/// Those that are not kept in `compute`.
std::vector<Fp8Layer> layers_in_fp8(const std::vector<plan::Fp8Layer>& planned);

/// Tells the names of these layers' weights.
std::function<bool(const std::string& name)> are_weights_of(const std::vector<Fp8Layer>& layers);

/// Lets `layers` multiply so. To be called once the model is divided over tp, and before it is over pp.
/// Gives a line that says by what, for GPUs. UserError: a part that a rank has of a weight is no multiple of 16
/// (mxfp8: 32); `device` cannot (plan/fp8_units.h).
std::string multiply_in_fp8(models::LanguageModel& model, std::vector<Fp8Layer>& layers,
                            const config::PrecisionSection& section, torch::Device device);

/// Notes which layers' weights the model still has. To be called once pp has divided it.
void note_fp8_here(const models::LanguageModel& model, std::vector<Fp8Layer>& layers);

/// Layers forget what they saw, and count what they lose in a step whose line is due.
void begin_fp8_step(Run& run, int64_t step);

struct Fp8Step {
  std::vector<report::Fp8Rounding> layers;  ///< of all ranks, where it was counted
  /// Why a step was skipped, if a number in 8 bits had no scale: "the input of model.layers.1.mlp.up_proj holds
  /// infinity"; else empty.
  std::string without_scale;
};

/// What a step has seen, over the ranks that share each layer, becomes the next one's scales
/// (fp8_delayed); of a skipped step nothing does. Collective. UserError: numbers that leave no scale.
Fp8Step finish_fp8_step(Run& run, int64_t step, bool skipped);

}  // namespace tessera::train
