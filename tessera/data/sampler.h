// Which sample comes at which place of a run: a pure function, so that nothing has to be kept, sent
// or restored.
#pragma once

#include <cstdint>

namespace tessera::data {

struct SamplerOptions {
  int64_t num_samples = 1;
  uint64_t seed = 0;
  bool shuffle = true;
};

/// Maps a global sample index (0, 1, 2, .. over the whole run, all ranks together) to a sample in
/// [0, num_samples). Not shuffled: index mod n. Shuffled: each epoch, indices [e n, (e + 1) n), is
/// a permutation of its own, a function of (seed, e) alone. Neither depends on the number of ranks,
/// so a run resumes on any number from its index. No memory: an unbalanced Feistel network of 8
/// rounds permutes [0, 2^b), the smallest power of two that holds n, and is applied again until the
/// result lies below n (cycle walking; less than two applications on average). Black and Rogaway,
/// Ciphers with Arbitrary Finite Domains, CT-RSA 2002.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);  ///< UserError unless num_samples > 0

  int64_t operator()(int64_t global_index) const;  ///< global_index >= 0

 private:
  uint64_t permute(uint64_t value, uint64_t epoch_key) const;

  SamplerOptions options_;
  int left_bits_ = 0, right_bits_ = 0;
};

}  // namespace tessera::data
