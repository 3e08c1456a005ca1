// Sums over ranks of which each number is sent in 8 bits.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// What remains of a sum on each rank: its N-th part, as of a reduce-scatter, or all, as of an
/// all-reduce.
enum class SumResult { own_part, all };

/// The sum over ranks of `values` [n], float32 or 16 bits, n a multiple of 32 (own_part: of 32 N). Each
/// rank sends E4M3, with one scale for all ranks: a power of two by the largest number of any, so
/// nothing overflows. Each adds up its part in float32; for `all` the sums travel in E4M3, too, with
/// a scale by the largest of them. FP8-LM (Peng et al., 2023, section 2.1) adds in 8 bits, and therefore
/// looks for a factor that keeps sums from overflowing; here the largest sum is known before it is rounded.
/// A rank sends n (N-1)/N bytes, for `all` twice that. NaN everywhere if any number is not finite.
class Fp8Sum {
 public:
  /// Waits for the ranks' maxima, then starts. Collective.
  Fp8Sum(mesh::Axis axis, torch::Tensor values, SumResult result);

  /// Brings the sum to `values`, of which own_part changes this rank's part alone. Collective.
  void finish();

 private:
  struct Part {
    int64_t begin, size;
  };
  Part part(int rank) const;
  float shared_scale(const torch::Tensor& values) const;
  void spread(const torch::Tensor& sum);

  mesh::Axis axis_;
  torch::Tensor values_, sent_, received_;
  SumResult result_;
  float scale_ = 1;
  comm::Work work_;
};

}  // namespace tessera::parallel
