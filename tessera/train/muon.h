// Muon on divided models: whole matrices from all that ranks divide.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/optim/optimizer.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/parallel/tensor/tensor_parallel.h"

namespace tessera::train {

/// What OptimizerOptions::orthogonalise asks for, on this rank: matrices are gathered over the ranks
/// that share slices, then over those that divide them (tp, etp), and each rank orthogonalises those of
/// which its slice has a part. So any division gives what one rank has.
class Orthogonaliser {
 public:
  /// Collective over the axes of `tensor_parts`, what this rank has of divided parameters.
  Orthogonaliser(parallel::DataParallel parallel, const parallel::TensorParts& tensor_parts,
                 optim::OptimizerOptions options);

  void operator()(const optim::MatrixSlices& slices) const;

 private:
  torch::Tensor updated(const std::string& name, const torch::Tensor& matrix, bool needed) const;

  parallel::DataParallel parallel_;
  optim::OptimizerOptions options_;
  struct Divided {
    std::vector<int64_t> shape;   // of the whole matrix
    mesh::Axis axis;              // whose ranks divide it
    std::vector<Stripe> stripes;  // of each of them
  };
  std::map<std::string, Divided> divided_;
};

}  // namespace tessera::train
