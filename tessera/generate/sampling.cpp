#include "tessera/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "tessera/base/error.h"

namespace tessera::generate {
namespace {

constexpr double kGone = -std::numeric_limits<double>::infinity();

std::vector<double> penalised(std::span<const float> logits, std::span<const int64_t> tokens,
                              double penalty) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (penalty == 1) return scores;
  for (const int64_t token : std::set<int64_t>(tokens.begin(), tokens.end())) {
    if (token < 0 || token >= std::ssize(scores)) continue;
    auto& score = scores[static_cast<size_t>(token)];
    score = score > 0 ? score / penalty : score * penalty;
  }
  return scores;
}

std::vector<double> softmax(const std::vector<double>& scores) {
  const double top = std::ranges::max(scores);
  std::vector<double> weights;
  weights.reserve(scores.size());
  double sum = 0;
  for (const double score : scores) sum += weights.emplace_back(std::exp(score - top));
  for (auto& weight : weights) weight /= sum;
  return weights;
}

void keep_top_k(std::vector<double>& scores, int64_t k) {
  if (k <= 0 || k >= std::ssize(scores)) return;
  auto sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater());
  const double least = sorted[static_cast<size_t>(k - 1)];
  for (auto& score : scores) {
    if (score < least) score = kGone;
  }
}

void keep_top_p(std::vector<double>& scores, double p) {
  if (p >= 1) return;
  const auto weights = softmax(scores);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  double before = 0;
  for (const size_t i : order) {
    if (before >= p) scores[i] = kGone;
    before += weights[i];
  }
}

void keep_min_p(std::vector<double>& scores, double p) {
  if (p <= 0) return;
  const double least = std::ranges::max(scores) + std::log(p);
  for (auto& score : scores) {
    if (score < least) score = kGone;
  }
}

/// A number in [0, 1) of (seed, position): splitmix64's finaliser (Steele, Lea, Flood, OOPSLA
/// 2014).
double uniform(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  };
  return static_cast<double>(mix(mix(seed + kGolden) + (position + 1) * kGolden) >> 11) * 0x1p-53;
}

}  // namespace

std::vector<double> probabilities(std::span<const float> logits, std::span<const int64_t> tokens,
                                  const SamplingOptions& options) {
  auto scores = penalised(logits, tokens, options.repetition_penalty);
  if (options.temperature > 0) {
    for (auto& score : scores) score /= options.temperature;
  }
  keep_top_k(scores, options.top_k);
  keep_top_p(scores, options.top_p);
  keep_min_p(scores, options.min_p);
  return softmax(scores);
}

int64_t sample(std::span<const float> logits, std::span<const int64_t> tokens,
               const SamplingOptions& options) {
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
    user_error("generate: the model's output after {} tokens is no number", tokens.size());
  }
  if (options.temperature == 0) {
    const auto scores = penalised(logits, tokens, options.repetition_penalty);
    return std::ranges::max_element(scores) - scores.begin();
  }
  const auto weights = probabilities(logits, tokens, options);
  double left = uniform(options.seed, tokens.size());
  int64_t last = 0;  // of those that may come
  for (int64_t i = 0; i < std::ssize(weights); ++i) {
    const double weight = weights[static_cast<size_t>(i)];
    if (weight <= 0) continue;
    last = i;
    if (left < weight) return i;
    left -= weight;
  }
  return last;  // the weights' sum is a rounding below 1
}

}  // namespace tessera::generate
