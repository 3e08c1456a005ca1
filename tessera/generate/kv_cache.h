// Keys and values of the tokens that a model has seen, so that each is computed once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/models/language_model.h"
#include "tessera/nn/attention.h"

namespace tessera::generate {

/// While it lives, attention of the model adds to it the keys and values that it is given, and
/// queries see all that is in it. Of layers with a window it keeps no more than the window hides.
/// Memory: 2 K E numbers a token and layer, at most twice that, as it grows by doubling.
class KvCache {
 public:
  /// The model outlives the cache, and has one at a time.
  explicit KvCache(models::LanguageModel& model);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int64_t length() const;  ///< tokens seen

  /// Forgets what is behind the first `length` tokens, or all if what these need was let go
  /// (windows). Returns how many are left.
  int64_t shorten(int64_t length);

 private:
  struct Layer {
    nn::AttentionImpl* attention;
    nn::AttentionCore core;      ///< its own
    torch::Tensor keys, values;  ///< [B, capacity, K, E]
    int64_t length = 0;          ///< tokens seen
    int64_t first = 0;           ///< the first of them that is kept
    int64_t at = 0;              ///< its place in keys and values

    void append(const torch::Tensor& k, const torch::Tensor& v, std::optional<int64_t> window);
    void make_room(const torch::Tensor& k, const torch::Tensor& v);
  };
  std::vector<Layer> layers_;
};

}  // namespace tessera::generate
