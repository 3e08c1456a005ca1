#include "tessera/generate/kv_cache.h"

#include <algorithm>

namespace tessera::generate {

KvCache::KvCache(models::LanguageModel& model) {
  for (const auto& module : model.modules()) {
    if (auto* attention = dynamic_cast<nn::AttentionImpl*>(module.get())) {
      layers_.push_back(
          {.attention = attention, .core = attention->core, .keys = {}, .values = {}});
    }
  }
  for (auto& layer : layers_) {
    layer.attention->core = [&layer](const torch::Tensor& q, const torch::Tensor& k,
                                     const torch::Tensor& v,
                                     const kernels::AttentionOptions& options,
                                     const torch::Tensor& documents, const torch::Tensor& sinks) {
      layer.append(k, v, options.window);
      const int64_t kept = layer.length - layer.first;
      return layer.core(q, layer.keys.narrow(1, layer.at, kept),
                        layer.values.narrow(1, layer.at, kept), options, documents, sinks);
    };
  }
}

KvCache::~KvCache() {
  for (auto& layer : layers_) layer.attention->core = layer.core;
}

int64_t KvCache::length() const { return layers_.empty() ? 0 : layers_.front().length; }

int64_t KvCache::shorten(int64_t length) {
  // A layer that let go of tokens lacks some that earlier ones see.
  const bool all_there = std::ranges::all_of(layers_, [&](const Layer& layer) {
    return length == layer.length || (length < layer.length && layer.first == 0);
  });
  const int64_t left = all_there ? length : 0;
  for (auto& layer : layers_) {
    layer.length = left;
    if (left == 0) layer.first = layer.at = 0;
  }
  return left;
}

void KvCache::Layer::append(const torch::Tensor& k, const torch::Tensor& v,
                            std::optional<int64_t> window) {
  if (window) {  // the first of the new queries sees window - 1 keys before itself
    const int64_t needed = std::max(first, length - (*window - 1));
    at += needed - first, first = needed;
  }
  const int64_t kept = length - first, added = k.size(1);
  if (!keys.defined() || at + kept + added > keys.size(1)) make_room(k, v);
  keys.narrow(1, at + kept, added).copy_(k);
  values.narrow(1, at + kept, added).copy_(v);
  length += added;
}

/// What is kept goes to the front of tensors that hold twice as much as is needed now: so each token is moved once on average.
void KvCache::Layer::make_room(const torch::Tensor& k, const torch::Tensor& v) {
  constexpr int64_t kLeast = 64;
  const int64_t kept = length - first, needed = kept + k.size(1);
  const auto moved = [&](const torch::Tensor& old, const torch::Tensor& like) {
    // A head's tokens one behind the other, as a query reads them.
    auto place = torch::empty(
        {like.size(0), like.size(2), std::max(kLeast, 2 * needed), like.size(3)}, like.options());
    place = place.transpose(1, 2);
    if (kept > 0) place.narrow(1, 0, kept).copy_(old.narrow(1, at, kept));
    return place;
  };
  keys = moved(keys, k), values = moved(values, v);
  at = 0;
}

}  // namespace tessera::generate
