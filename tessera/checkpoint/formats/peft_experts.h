// Adapters of tensors that hold all experts of a layer, as PEFT's target_parameters has them (0.17 and later, ParamWrapper).
//
// Of E experts, rank r, and a tensor of E matrices [outputs, inputs] (gpt-oss: [inputs, outputs]) lora_A is [E r, inputs] and
// lora_B [outputs, r E]: row k of expert e's A is row e r + k, column k of its B column k E + e. gate and up of an expert are
// one matrix there, so they share an A; two of their own are one of both ranks, whose B has zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/source_view.h"
#include "tessera/models/adapter.h"

namespace tessera::checkpoint {

/// Where an expert's matrix is in the tensor of all.
struct ExpertPlace {
  std::string tensor;  ///< "model.layers.0.mlp.experts.gate_up_proj"
  int64_t expert = 0, num_experts = 0;
  int64_t first = 0, step = 1;      ///< its output i is the tensor's first + i step
  int64_t outputs = 0, inputs = 0;  ///< of the tensor
  std::string part;                 ///< "gate_proj"
};

/// By the module of each expert's matrix; empty for a model without mixtures.
std::map<std::string, ExpertPlace> expert_places(const FamilyNames& names,
                                                 const models::ModelShape& shape);

/// PEFT's key of a tensor's ".lora_A" or ".lora_B". `tensors`: all that have an adapter; of two of a layer
/// one is wrapped in the other.
std::string expert_key(const std::string& tensor, const std::string& rest,
                       const std::set<std::string>& tensors);

/// Adds an expert's A or B to the view, out of what `stored` calls `key`. UserError: a tensor of another
/// shape, which is of another number of experts or rank.
void add_of_expert(SourceView& view, const models::TrainedParameter& parameter,
                   const ExpertPlace& place, const TensorSource& stored, const std::string& key);

/// Adapters of all experts of a layer as one of their tensor.
struct ExpertAdapter {
  std::vector<models::AdaptedModule> modules;
  std::vector<ExpertPlace> places;  ///< of the modules
  int64_t rank = 0;                 ///< the most that an expert has together
  double alpha = 0;

  std::vector<float> a(const TensorSource& trained) const;  ///< [E rank, inputs]
  std::vector<float> b(const TensorSource& trained) const;  ///< [outputs, rank E]
};

/// UserError: one of an expert's matrices that only some experts have an adapter of; it ends with `otherwise`,
/// what can be done instead.
ExpertAdapter expert_adapter(std::vector<models::AdaptedModule> modules,
                             const std::map<std::string, ExpertPlace>& places, bool rslora,
                             const std::string& otherwise);

/// Tensors of float32 that are computed when they are read; the last one is kept.
class ComputedMatrices : public TensorSource {
 public:
  using Compute = std::function<std::vector<float>()>;
  /// `path`: for messages.
  explicit ComputedMatrices(std::filesystem::path path) : TensorSource(std::move(path)) {}

  void add(const std::string& name, std::vector<int64_t> shape, Compute compute);

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::map<std::string, Compute> computes_;
  mutable std::mutex mutex_;
  mutable std::string last_name_;
  mutable std::vector<float> last_;
};

}  // namespace tessera::checkpoint
