// 8-bit products in a run: which layers, and the scales that they carry from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/kernels/fp8_linear.h"
#include "tessera/models/language_model.h"

namespace tessera::train {

struct Run;

/// A linear layer that multiplies as precision.matmul says.
struct Fp8Layer {
  std::string path;                ///< "model.layers.0.mlp.up_proj"
  kernels::Fp8HistoryPtr history;  ///< of fp8_delayed; null else
};

/// The linear layers of blocks but those of fp8_keep, by path. None if the run has no numbers of 8 bits in
/// them. UserError: a pattern of fp8_keep matches no layer.
std::vector<std::string> fp8_layers(const models::LanguageModel& model,
                                    const config::PrecisionSection& section);

/// Tells the names of these layers' weights.
std::function<bool(const std::string& name)> are_weights_of(const std::vector<std::string>& layers);

/// Lets `layers` multiply so. To be called once the model is divided over tp, and before it is over pp.
/// UserError: a part that a rank has of a weight is no multiple of 16 (mxfp8: 32).
std::vector<Fp8Layer> multiply_in_fp8(models::LanguageModel& model,
                                      const std::vector<std::string>& layers,
                                      const config::PrecisionSection& section);

/// Leaves those whose weights the model still has; gives the paths of all that carry scales.
std::vector<std::string> keep_fp8_of(const models::LanguageModel& model,
                                     std::vector<Fp8Layer>& layers);

/// What a step has seen, over the ranks that share each layer, becomes the next one's scales; of a
/// skipped step nothing does. Collective over dp and tp with fp8_delayed. UserError: numbers
/// that leave no scale.
void finish_fp8_step(Run& run, int64_t step, bool skipped);

}  // namespace tessera::train
