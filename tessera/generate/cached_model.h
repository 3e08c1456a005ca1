// A model that goes on with a text from where it stood.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/generate/kv_cache.h"

namespace tessera::generate {

/// Logits float32 [V] on the CPU of what follows `tokens`, the same on every rank. Collective where
/// ranks divide the model.
using NextLogits = std::function<torch::Tensor(std::span<const int64_t> tokens)>;

/// ids int64 [1, T], the first of which stands at `first_position` -> logits [V] behind the last.
using Forward = std::function<torch::Tensor(const torch::Tensor& ids, int64_t first_position)>;

/// Computes what is new in a text alone: what it has in common with the beginning of the one before
/// is kept. Longer stretches go through the model `chunk` tokens at a time.
class CachedModel {
 public:
  /// `forward`: how to call the model; unset: its three parts, without gradients.
  explicit CachedModel(models::LanguageModel& model, Forward forward = {});

  /// NextLogits. ValueError where the text has more positions than the model.
  torch::Tensor operator()(std::span<const int64_t> tokens);

  int64_t chunk = 512;

 private:
  int64_t tokens_at_once(int64_t length) const;

  const models::ModelShape& shape_;
  Forward forward_;
  KvCache cache_;
  std::vector<int64_t> tokens_;  ///< of the cache
};

}  // namespace tessera::generate
