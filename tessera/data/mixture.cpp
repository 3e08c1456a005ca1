#include "tessera/data/mixture.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr int64_t kLongestPeriod = 65536;

/// Whole numbers of the weights' proportions with the smallest sum; empty if none sum up to at most
/// kLongestPeriod.
std::vector<int64_t> exact_parts(std::span<const double> weights) {
  const double smallest = *std::ranges::min_element(weights);
  std::vector<int64_t> parts(weights.size());
  for (int64_t unit = 1; unit <= kLongestPeriod; ++unit) {  // what the smallest weight becomes
    int64_t sum = 0;
    const bool whole = std::ranges::all_of(weights, [&, i = size_t{0}](double weight) mutable {
      const double part = weight / smallest * static_cast<double>(unit);
      if (part > static_cast<double>(kLongestPeriod)) return false;
      parts[i] = std::llround(part);
      sum += parts[i];
      return std::abs(part - static_cast<double>(parts[i++])) <= 1e-9 * part;
    });
    if (sum > kLongestPeriod) return {};
    if (whole) return parts;
  }
  return {};
}

std::vector<int64_t> rounded_parts(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> parts;
  for (const double weight : weights) {
    parts.push_back(std::llround(weight / sum * static_cast<double>(kLongestPeriod)));
    if (parts.back() > 0) continue;
    user_error("weights: expected each at least 1/{} of their sum {}, got {}", kLongestPeriod, sum,
               weight);
  }
  return parts;
}

std::vector<double> weights_of(std::span<const WeightedRows> sources) {
  std::vector<double> weights;
  for (const auto& source : sources) weights.push_back(source.weight);
  return weights;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      user_error("weights: expected numbers above 0, got {}", weight);
  }
  parts_ = exact_parts(weights);
  if (parts_.empty()) parts_ = rounded_parts(weights);
  const int64_t sum = std::accumulate(parts_.begin(), parts_.end(), int64_t{0});
  std::vector<uint32_t> taken(parts_.size());
  for (int64_t place = 0; place < sum; ++place) {
    // The next row comes from the source that would be the first to be behind by 1 - 1 / d, among
    // those that are behind by 1 / d of a place or more.
    const int64_t d = std::max<int64_t>(1, 2 * (std::ssize(parts_) - 1));
    size_t next = parts_.size();
    double next_deadline = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int64_t n = taken[i];
      const bool is_behind = d * parts_[i] * (place + 1) >= (d * n + 1) * sum;
      const double deadline =
          static_cast<double>((d * (n + 1) - 1) * sum) / static_cast<double>(d * parts_[i]);
      if (is_behind && (next == parts_.size() || deadline < next_deadline))
        next = i, next_deadline = deadline;
    }
    assert(next < parts_.size());  // by his theorem
    turns_.push_back({.source = static_cast<uint32_t>(next), .position = taken[next]++});
  }
}

Mixture::Turn Mixture::operator()(int64_t index) const {
  const auto& turn = turns_[static_cast<size_t>(index % period())];
  return {.source = turn.source,
          .position = index / period() * parts_[turn.source] + turn.position};
}

int64_t Mixture::turns_of(size_t source, int64_t count) const {
  const auto rest = std::span(turns_).first(static_cast<size_t>(count % period()));
  return count / period() * parts_[source] + std::ranges::count(rest, source, &PeriodTurn::source);
}

MixtureSampler::MixtureSampler(const MixtureSamplerOptions& options)
    : mixture_(weights_of(options.sources)) {
  constexpr uint64_t kStride = 0xD1B54A32D192ED03;  // sources of one size differ in their orders
  int64_t first = 0;
  for (const auto& [num_rows, weight] : options.sources) {
    const auto seed = options.seed + samplers_.size() * kStride;
    samplers_.emplace_back(
        SamplerOptions{.num_samples = num_rows, .seed = seed, .shuffle = options.shuffle});
    first_.push_back(first);
    num_rows_.push_back(num_rows);
    first += num_rows;
  }
}

int64_t MixtureSampler::operator()(int64_t global_index) const {
  const auto [source, position] = mixture_(global_index);
  return first_[source] + samplers_[source](position);
}

double MixtureSampler::epochs_of(size_t source, int64_t count) const {
  return static_cast<double>(mixture_.turns_of(source, count)) /
         static_cast<double>(num_rows_[source]);
}

double MixtureSampler::share_of(size_t source) const {
  return static_cast<double>(mixture_.parts()[source]) / static_cast<double>(mixture_.period());
}

}  // namespace tessera::data
