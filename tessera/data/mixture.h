// Which of several sources comes at which place of a run, and which of its samples: a pure function, as
// the sampler of one source is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/rows.h"
#include "tessera/data/sampler.h"

namespace tessera::data {

/// Sources in turn, as often as their weights say. Weights are taken as whole numbers of the same
/// proportions (2 and 1, 0.7 and 0.3), else rounded to parts of 65,536; with their sum P the turns
/// repeat after P places. So any P places in a row hold each source exactly as often as its weight,
/// and any beginning differs by less than one place (Tijdeman, The chairman assignment problem,
/// Discrete Mathematics 32, 1980). Memory: 8 bytes a place of a period.
class Mixture {
 public:
  /// UserError: a weight that is not above 0, or more than 65,536 times as large as another.
  explicit Mixture(std::span<const double> weights);

  struct Turn {
    size_t source = 0;
    int64_t position = 0;  ///< how often the source came before
  };
  Turn operator()(int64_t index) const;  ///< index >= 0

  /// How often `source` comes among the first `count` places.
  int64_t turns_of(size_t source, int64_t count) const;

  const std::vector<int64_t>& parts() const { return parts_; }  ///< weights as whole numbers
  int64_t period() const { return static_cast<int64_t>(turns_.size()); }  ///< their sum

 private:
  struct PeriodTurn {
    uint32_t source = 0, position = 0;
  };
  std::vector<int64_t> parts_;
  std::vector<PeriodTurn> turns_;
};

struct MixtureSamplerOptions {
  std::vector<WeightedRows> sources = {{}};
  uint64_t seed = 0;
  bool shuffle = true;
};

/// Maps a global sample index to a sample of the sources put one after the other. Each source is gone
/// through by a Sampler of its own, again and again, in another order each time: small ones
/// repeat, of large ones a part is seen. Of one source it is that Sampler.
class MixtureSampler {
 public:
  explicit MixtureSampler(const MixtureSamplerOptions& options);

  int64_t operator()(int64_t global_index) const;  ///< global_index >= 0

  /// How often each sample of `source` comes among the first `count` indices, on average.
  double epochs_of(size_t source, int64_t count) const;
  /// Share of the samples that are of `source`.
  double share_of(size_t source) const;

 private:
  Mixture mixture_;
  std::vector<Sampler> samplers_;
  std::vector<int64_t> first_, num_rows_;  // of each source
};

}  // namespace tessera::data
