// Adapters: a few numbers trained beside a frozen model. LoRA (Hu et al., ICLR 2022): W x + scale B A x with A [r, in] and B
// [out, r]; rsLoRA (Kalajdzievski 2023): its scale; DoRA (Liu et al., ICML 2024): a magnitude for each output. Which modules
// have one, by PEFT's rules, and which parameters are trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/models/shape.h"
#include "tessera/models/spec.h"

namespace tessera::models {

/// Values by patterns of module paths. The first pattern that matches (.*\.)?(pattern) counts.
template <typename T>
using Patterns = std::vector<std::pair<std::string, T>>;

/// The settings of PEFT's LoraConfig that we carry out.
///
/// An entry of targets or exclude made of letters, digits and _ - . is a name: a module whose path it is, or ends with "." and
/// it. Any other is a pattern (ECMAScript's) that the whole path must match; all-linear is every linear layer but the head.
/// Where files fuse modules (Phi-3's qkv_proj), names and patterns may speak of either.
struct AdapterSpec {
  AdapterType type = AdapterType::none;
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;                ///< of what enters A
  bool rslora = false;               ///< scale alpha / sqrt(rank), not alpha / rank
  std::vector<std::string> targets;  ///< empty: the family's, as PEFT has them
  std::vector<std::string> exclude;  ///< not these
  std::vector<int64_t> layers;  ///< of these blocks alone, or named by a whole path; empty: of all
  Patterns<int64_t> rank_pattern;            ///< ranks of some
  Patterns<double> alpha_pattern;            ///< alphas of some
  std::vector<std::string> modules_to_save;  ///< trained whole: paths that end with one of these
  AdapterBias bias = AdapterBias::none;      ///< which biases are trained
  AdapterInit init = AdapterInit::kaiming;
  int64_t pissa_iterations = 0;  ///< of init pissa: subspace iterations; 0: exact singular values

  bool operator==(const AdapterSpec&) const = default;
};

/// A module that has an adapter.
struct AdaptedModule {
  std::string path;  ///< "model.layers.0.self_attn.q_proj"
  int64_t rank = 0;
  double alpha = 0, scale = 0;
  bool embedding = false;  ///< inputs: rows of its table
  int64_t inputs = 0, outputs = 0;
  bool inputs_first = false;     ///< its weight is [inputs, outputs]
  std::optional<int64_t> layer;  ///< block that it belongs to
  bool of_expert = false;        ///< ParameterSpec::of_expert

  bool operator==(const AdaptedModule&) const = default;
};

/// The modules that the spec names, in the model's order; none without an adapter. UserError, that names adapter.targets and the like:
/// nothing matches (with the nearest name), a pattern that is none, a rank above the matrix's, a layer that is not there.
std::vector<AdaptedModule> adapted_modules(const AdapterSpec& spec, const ModelShape& shape);

/// A parameter that is trained beside the frozen ones: the adapter's own, or one of the model's.
struct TrainedParameter {
  std::string name;
  std::vector<int64_t> shape;
  bool of_adapter = true;        ///< false: the model's parameter of this name
  std::optional<int64_t> layer;  ///< block that it belongs to
  bool of_embedding = false;
  Division division = Division::parts;  ///< over ranks of tensor parallelism
  bool of_expert = false;               ///< ParameterSpec::of_expert

  int64_t num_elements() const;
  bool operator==(const TrainedParameter&) const = default;
};

/// An adapter's own parameters: `<path>.lora_A` [rank, inputs], `.lora_B` [outputs, rank], of an embedding
/// `.lora_embedding_A` and `.lora_embedding_B`, and DoRA's `.lora_magnitude_vector` [outputs].
std::vector<TrainedParameter> parameters_of(const AdaptedModule& module, AdapterType type);

/// All that are trained: each module's, then modules_to_save and biases, in the model's order. Without an adapter every
/// parameter of the model. UserError as adapted_modules, or modules_to_save that match nothing.
std::vector<TrainedParameter> trained_parameters(const AdapterSpec& spec, const ModelShape& shape);

/// What a rank has of them whose part of each matrix is `part`'s, which has all blocks.
std::vector<TrainedParameter> trained_parameters(const AdapterSpec& spec, const ModelShape& shape,
                                                 const ModelShape& part);

int64_t num_trained(const AdapterSpec& spec, const ModelShape& shape);
int64_t num_of_adapter(const AdapterSpec& spec, const ModelShape& shape);  ///< the adapter's own

/// Like training_flops_per_token (models/shape.h), for a run with an adapter: a frozen matrix has no gradient,
/// so 4 per parameter of it, and 6 per parameter of what is trained.
double adapter_flops_per_token(const AdapterSpec& spec, const ModelShape& shape, int64_t seq_len);

/// What is trained of `all` parameters, an adapter's own among both, as one reads it.
std::string trained_text(int64_t trained, int64_t all);

/// The spec without entries that match nothing of the model, which PEFT ignores: for those that come from its files.
AdapterSpec without_idle_entries(AdapterSpec spec, const ModelShape& shape);

/// Why `ep` ranks that share out experts cannot train those that the spec names, if so: each must have as many.
std::optional<std::string> uneven_experts(const AdapterSpec& spec, const ModelShape& shape,
                                          int64_t ep);

}  // namespace tessera::models
