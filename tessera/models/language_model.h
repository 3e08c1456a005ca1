// What the trainer asks of a language model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/kernels/linear_cross_entropy.h"
#include "tessera/models/shape.h"
#include "tessera/nn/hooked.h"
#include "tessera/nn/tensor_plan.h"

namespace tessera::models {

/// How the rows of a batch are made up.
struct RowLayout {
  int64_t seq_len = 0;         ///< T, tokens of a row, also where a rank has a part of them
  int64_t first_position = 0;  ///< of each row's first token; what is before it lies in a cache
  /// Documents in the rows (kernels/documents.h): attention stays inside of each, and positions
  /// begin anew. Undefined: each row is one.
  torch::Tensor documents;
};

/// A decoder-only language model, written as if one device existed. Parameter names are Hugging
/// Face's. Its forward has three parts, which the stages of a pipeline divide between them.
class LanguageModel : public nn::Hookable {
 public:
  explicit LanguageModel(ModelShape shape) : shape_(std::move(shape)) {}

  /// ids int64 [B, T] -> hidden [B, T, D]. ValueError if a position exceeds shape().max_seq_len
  /// where they are learned.
  virtual torch::Tensor embed(const torch::Tensor& ids, const RowLayout& rows) = 0;

  /// hidden [B, T, D] before layer `begin` -> hidden after layer `end` - 1 (T is a part of
  /// rows.seq_len under sequence parallelism).
  virtual torch::Tensor run_layers(torch::Tensor hidden, int64_t begin, int64_t end,
                                   const RowLayout& rows) = 0;

  /// hidden after the last layer -> logits [B, T, V]; with targets int64 [B, T] (-100: ignored):
  /// what `loss` makes of the token cross-entropies, fp32, 0-d; logits are never held whole.
  virtual torch::Tensor head(const torch::Tensor& hidden, const torch::Tensor& targets,
                             const kernels::TokenLoss& loss) = 0;

  /// All three parts.
  torch::Tensor logits(const torch::Tensor& ids, const torch::Tensor& documents = {});
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets,
                     const kernels::TokenLoss& loss, const torch::Tensor& documents = {});

  /// Paths of its modules, by the part that calls them.
  struct Layout {
    std::vector<std::string> embedding, layers, head;
  };
  virtual Layout layout() const = 0;

  /// The transformer blocks that are here, in order: what is checkpointed, and the units between
  /// the others.
  std::vector<nn::Hookable*> blocks();

  /// How it is divided by tensor parallelism.
  virtual nn::TensorPlan tensor_plan() const = 0;

  /// Initial value of one parameter: a constant for norms and biases, else the standard deviation
  /// of its weights.
  struct Initial {
    bool constant = false;
    double value = 0.02;  ///< the constant, or the standard deviation
  };
  virtual Initial initial(const std::string& parameter, int64_t dims, double std) const = 0;

  const ModelShape& shape() const { return shape_; }

 protected:
  /// "prefix0", "prefix1", .. for a layout.
  static std::vector<std::string> numbered(const std::string& prefix, int64_t count);

 private:
  ModelShape shape_;
};

/// The model of a shape; parameters uninitialised, on the device of `options` (meta included).
std::shared_ptr<LanguageModel> make_language_model(const ModelShape& shape,
                                                   const torch::TensorOptions& options = {});

/// Keys that a query of a layer sees, itself included; none: all before it.
std::optional<int64_t> window_of(const ModelShape& shape, int64_t layer);

/// First values of elements begin .. of a parameter with `dims` dimensions, into `part` [n], from
/// (seed, name, position): the same bits on any rank, however parameters are divided.
void initialise_part(const LanguageModel& model, const std::string& name, int64_t dims,
                     int64_t seed, double std, int64_t begin, const torch::Tensor& part);

/// The same for every parameter.
void initialise(LanguageModel& model, int64_t seed, double std);

}  // namespace tessera::models
