#include "tessera/base/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tessera {
namespace {

/// The Levenshtein table is kept in its last three rows: an exchange of neighbours looks back by
/// two. A distance beyond `most` comes back as any number beyond it.
size_t edit_distance(std::string_view a, std::string_view b, size_t most) {
  std::vector<size_t> earlier(b.size() + 1), before(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    earlier.swap(before);
    before.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, before[j - 1] + substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], earlier[j - 2] + 1);
      }
    }
    // What is left is at least as far as the nearer of the two rows that it is made of.
    if (std::min(std::ranges::min(row), std::ranges::min(before)) > most) return most + 1;
  }
  return row[b.size()];
}

/// Is `distance` small beside the longer of the two?
bool is_near(size_t distance, size_t a, size_t b) { return distance * 2 <= std::max(a, b); }

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = SIZE_MAX / 2;
  for (const auto& candidate : candidates) {
    const size_t at_least =
        std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    const size_t most = std::min(std::max(name.size(), candidate.size()) / 2, best_distance);
    if (at_least > most) continue;
    const size_t distance = edit_distance(name, candidate, most);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return is_near(best_distance, best.size(), name.size()) ? best : "";
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const auto found = nearest(name, candidates);
  return found.empty() ? "" : fmt::format("; did you mean '{}'?", found);
}

}  // namespace tessera
