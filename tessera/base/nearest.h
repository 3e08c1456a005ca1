// "Did you mean ..": the nearest of several names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// The candidate with the smallest edit distance (Levenshtein; a swap of neighbours counts one), or
/// "" if even that one differs in more than half of its letters.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

/// "; did you mean 'x'?" or "" when nothing is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace tessera
