// Linear layers, and what is behind their weight. Parameters are uninitialised: fill them with
// `initialise` (nn/initialise.h) or from a checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/stripe.h"
#include "tessera/kernels/linear.h"
#include "tessera/kernels/low_rank_linear.h"
#include "tessera/nn/hooked.h"

namespace tessera::nn {

/// One parameter of a linear layer, and which of its dimensions are features of the layer's output
/// and input; -1: none.
struct LinearParameter {
  std::string name;  ///< within the layer
  torch::Tensor values;
  int64_t out_dim = -1, in_dim = -1;
  int64_t in_features = 1;       ///< that an index along in_dim stands for
  std::string undividable;       ///< why tensor parallelism cannot divide it, if it cannot
  std::shared_ptr<Stripe> kept;  ///< if given, told what of it a rank keeps
  /// Where input features are divided over ranks: it acts on the sum of their products, as a bias
  /// does, and not in each summand.
  bool after_sum = false;
};

class LinearImpl;

/// How a linear layer keeps its weight: as one dense matrix, the layer's `weight`, or as something
/// else that it multiplies by. Tensor parallelism divides the parameters along the dimensions that
/// they name.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;

  /// x [.., in] -> [.., out], with the layer's bias and over_ranks.
  virtual torch::Tensor multiply(const LinearImpl& layer, const torch::Tensor& x) const = 0;
  virtual std::vector<LinearParameter> parameters(const LinearImpl& layer) const = 0;
  /// The matrix alone, for this forward and its backward, where it is not trained.
  virtual kernels::FrozenMatrix frozen(const LinearImpl& layer) const = 0;
  /// Is the layer's `weight` [out, in] all that it multiplies by? Then others may multiply by it.
  virtual bool is_dense() const { return false; }
};
using LinearWeightPtr = std::shared_ptr<const LinearWeight>;

/// In which order a dense matrix is stored.
enum class WeightLayout { out_in, in_out };

/// y = x W^T + b with weight [out, in] and bias [out].
class LinearImpl : public Hookable {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, bool with_bias = false,
             const torch::TensorOptions& options = {}, WeightLayout layout = WeightLayout::out_in);
  torch::Tensor forward(const torch::Tensor& x);  ///< [.., in] -> [.., out]

  /// Its parameters, bias included.
  std::vector<LinearParameter> linear_parameters() const;

  /// What is behind the weight, which another may take the place of.
  const LinearWeightPtr& kept() const { return kept_; }
  void keep(LinearWeightPtr weight) { kept_ = std::move(weight); }
  /// Takes `parts`, which are not trained, into the register in the place of `weight`, as which the
  /// first is known from now on.
  void replace_weight(const std::vector<std::pair<std::string, torch::Tensor>>& parts);

  const int64_t in_features, out_features;  ///< of the whole layer, where it is divided
  WeightLayout weight_layout() const { return layout_; }  ///< of the weight that it was made with
  torch::Tensor weight, bias;                             ///< bias undefined without one
  kernels::ProductOverRanksPtr over_ranks;                ///< where `in` is divided over ranks
  /// Adds numbers that each rank has of its part of `in`, in place; empty: this one has it all.
  /// Collective.
  std::function<void(const torch::Tensor& numbers)> add_up;
  /// The share of the bias that this rank adds, where results are summed over ranks outside of the layer.
  double bias_share = 1;
  torch::Tensor own_bias() const;  ///< that share of it; undefined without a bias
  /// How a dense weight multiplies while the layer trains; null: in its dtype.
  kernels::LinearProductsPtr products;

 private:
  WeightLayout layout_;
  LinearWeightPtr kept_;
};
using Linear = Hooked<LinearImpl>;

/// GPT-2's linear layer: weight [in, out] as in its checkpoints, bias [out].
class Conv1DImpl : public LinearImpl {
 public:
  Conv1DImpl(int64_t in_features, int64_t out_features, const torch::TensorOptions& options = {});
};
using Conv1D = Hooked<Conv1DImpl>;

}  // namespace tessera::nn
