// What the trainer asks of a language model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/config/model_shape.h"
#include "tessera/nn/hooked.h"
#include "tessera/nn/tensor_plan.h"

namespace tessera::models {

/// Modules whose parameters are kept, gathered and reduced together, in the order of the forward.
struct Unit {
  std::string name;
  std::vector<nn::Hookable*> modules;
};

/// A decoder-only language model, written as if one device existed. Parameter names are Hugging
/// Face's.
class LanguageModel : public nn::Hookable {
 public:
  explicit LanguageModel(config::ModelShape shape) : shape_(std::move(shape)) {}

  /// ids int64 [B, T] -> logits [B, T, V]. ValueError if T exceeds shape().max_seq_len where
  /// positions are learned.
  virtual torch::Tensor logits(const torch::Tensor& ids) = 0;

  /// `scale` times the sum of the token cross-entropies, fp32, 0-d. targets int64 [B, T], -100:
  /// ignored. Logits are never held whole.
  virtual torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets,
                             double scale) = 0;

  /// The default units: one per block, embedding and head beside them (together when tied).
  virtual std::vector<Unit> units() = 0;

  /// The transformer blocks, in order: what is checkpointed, and the units between the others.
  virtual std::vector<nn::Hookable*> blocks() = 0;

  /// How it is divided by tensor parallelism.
  virtual nn::TensorPlan tensor_plan() const = 0;

  /// Initial value of one parameter: a constant for norms and biases, else the standard deviation
  /// of its weights.
  struct Initial {
    bool constant = false;
    double value = 0.02;  ///< the constant, or the standard deviation
  };
  virtual Initial initial(const std::string& parameter, int64_t dims, double std) const = 0;

  const config::ModelShape& shape() const { return shape_; }

 private:
  config::ModelShape shape_;
};

/// The model of a shape; parameters uninitialised, on the device of `options` (meta included).
std::shared_ptr<LanguageModel> make_language_model(const config::ModelShape& shape,
                                                   const torch::TensorOptions& options = {});

/// First values of elements begin .. of a parameter with `dims` dimensions, into `part` [n], from
/// (seed, name, position): the same bits on any rank, however parameters are divided.
void initialise_part(const LanguageModel& model, const std::string& name, int64_t dims,
                     int64_t seed, double std, int64_t begin, const torch::Tensor& part);

/// The same for every parameter.
void initialise(LanguageModel& model, int64_t seed, double std);

}  // namespace tessera::models
