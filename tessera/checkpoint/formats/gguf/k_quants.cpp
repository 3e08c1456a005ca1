#include "tessera/checkpoint/formats/gguf/k_quants.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tessera/checkpoint/formats/gguf/blocks.h"

namespace tessera::checkpoint {
namespace {

constexpr int kBlock = 256;
constexpr float kLeastScale = 1e-15F;  // below it a group counts as zeros

/// To the nearest whole number, halves to the even one: adding 1.5 * 2^23 leaves it in the low bits.
int nearest(float value) {
  constexpr float kShift = 12582912.0F;
  return (std::bit_cast<int>(value + kShift) & 0x007FFFFF) - 0x00400000;
}

std::byte as_byte(unsigned number) { return static_cast<std::byte>(number); }

/// values ~ scale * number - minimum
struct Line {
  float scale = 0, minimum = 0;
  /// The numbers by which it was found: of (value - least) * per_value.
  float per_value = 0, least = 0;
};

/// The largest number, and the tries at a group's scale: in steps of a tenth from `first` beyond it.
struct Search {
  int most, steps;
  float first;
};

/// A group of 32 with the weight of each value's error.
struct Group {
  static constexpr int kSize = 32;
  const float* values;
  std::array<float, kSize> weights{};
  float least = 0, most = 0, sum_of_weights = 0, weighted_sum = 0;

  explicit Group(const float* from) : values(from), least(from[0]), most(from[0]) {
    float squares = 0;
    for (int i = 0; i < kSize; ++i) squares += values[i] * values[i];
    const float typical = std::sqrt(squares / kSize);
    for (int i = 0; i < kSize; ++i) {
      const float weight = weights[static_cast<size_t>(i)] = typical + std::abs(values[i]);
      least = std::min(least, values[i]), most = std::max(most, values[i]);
      sum_of_weights += weight, weighted_sum += weight * values[i];
    }
    least = std::min(least, 0.0F);
  }

  float weight(int i) const { return weights[static_cast<size_t>(i)]; }

  using Numbers = std::array<float, kSize>;  ///< whole, 0 to the search's most
  Numbers numbers(float per_value, float from, int largest) const {
    Numbers result;
    for (int i = 0; i < kSize; ++i) {
      const int number = std::clamp(nearest(per_value * (values[i] - from)), 0, largest);
      result[static_cast<size_t>(i)] = static_cast<float>(number);
    }
    return result;
  }

  /// The weighted squares of what `scale` and `offset` make of the numbers.
  float error(const Numbers& numbers, float scale, float offset) const {
    float sum = 0;
    for (int i = 0; i < kSize; ++i) {
      const float off = scale * numbers[static_cast<size_t>(i)] + offset - values[i];
      sum += weight(i) * (off * off);
    }
    return sum;
  }

  /// Scale and offset (at most 0) that fit the numbers best; a scale of 0: these have none.
  std::array<float, 2> fit(const Numbers& numbers) const {
    float sum = 0, squares = 0, products = 0;
    for (int i = 0; i < kSize; ++i) {
      const float count = numbers[static_cast<size_t>(i)];
      const float weighted = weight(i) * count;
      sum += weighted, squares += weighted * count, products += weighted * values[i];
    }
    const float divisor = sum_of_weights * squares - sum * sum;
    if (!(divisor > 0)) return {};
    const float offset = (squares * weighted_sum - sum * products) / divisor;
    if (offset > 0) return {products / squares, 0};
    return {(sum_of_weights * products - weighted_sum * sum) / divisor, offset};
  }
};

/// Each try begins at the minimum of the best one before it.
Line search_line(const Group& group, const Search& search) {
  constexpr float kStep = 0.1F;
  const auto largest = static_cast<float>(search.most);
  if (group.most == group.least) return {.minimum = -group.least};
  const float plain = largest / (group.most - group.least);
  float scale = 1 / plain, offset = group.least;
  Line best{.per_value = plain, .least = offset};
  float best_error = group.error(group.numbers(plain, offset, search.most), scale, offset);
  for (int step = 0; step <= search.steps; ++step) {
    const float per_value =
        (search.first + kStep * static_cast<float>(step) + largest) / (group.most - offset);
    const auto numbers = group.numbers(per_value, offset, search.most);
    const auto [fitted, moved] = group.fit(numbers);
    if (fitted == 0) continue;
    const float error = group.error(numbers, fitted, moved);
    if (!(error < best_error)) continue;
    best_error = error, best.per_value = per_value, best.least = offset;
    scale = fitted, offset = moved;
  }
  best.scale = scale, best.minimum = -offset;
  return best;
}

struct Scale {
  float scale = 0;
  float per_value =
      0;  ///< the numbers by which it was found: of value * per_value; 0: all are zeros
};

/// A scale for 16 values as multiples -32 to 31 of it. Its sign is such that the value of largest
/// magnitude is a negative multiple, of which there is one more.
Scale search_scale(const float* values) {
  constexpr int kSize = 16, kMost = 32, kSteps = 9;
  float extreme = 0;
  for (int i = 0; i < kSize; ++i) {
    if (std::abs(values[i]) > std::abs(extreme)) extreme = values[i];
  }
  if (std::abs(extreme) < kLeastScale) return {};
  const auto sums = [&](float per_value) {
    std::array<float, 2> result{};  // of products, of squares
    for (int i = 0; i < kSize; ++i) {
      const int number = std::clamp(nearest(per_value * values[i]), -kMost, kMost - 1);
      const float weight = values[i] * values[i], count = static_cast<float>(number);
      result[0] += weight * values[i] * count, result[1] += weight * count * count;
    }
    return result;
  };
  Scale found{.per_value = -static_cast<float>(kMost) / extreme};
  const auto [products, squares] = sums(found.per_value);
  found.scale = squares != 0 ? products / squares : 0.0F;
  float best = found.scale * products;
  for (int step = -kSteps; step <= kSteps; ++step) {
    if (step == 0) continue;
    const float per_value =
        -(static_cast<float>(kMost) + 0.1F * static_cast<float>(step)) / extreme;
    const auto [lx, l2] = sums(per_value);
    if (!(l2 > 0 && lx * lx > best * l2)) continue;
    found = {lx / l2, per_value};
    best = found.scale * lx;
  }
  return found;
}

/// Scales and minima into the first 16 bytes, and the numbers that they leave to be written.
std::array<unsigned, kBlock> write_lines(const float* values, const Search& search,
                                         std::byte* block) {
  constexpr int kGroups = kBlock / Group::kSize;
  std::array<Line, kGroups> lines;
  float scale = 0, minimum = 0;
  for (size_t group = 0; group < kGroups; ++group) {
    lines[group] = search_line(Group(values + group * Group::kSize), search);
    scale = std::max(scale, lines[group].scale);
    minimum = std::max(minimum, lines[group].minimum);
  }
  std::memset(block, 0, 16);
  write_f16(scale / 63, block), write_f16(minimum / 63, block + 2);
  const float per_scale = scale > 0 ? 63 / scale : 0, per_minimum = minimum > 0 ? 63 / minimum : 0;
  for (int group = 0; group < kGroups; ++group) {
    const auto& line = lines[static_cast<size_t>(group)];
    put_group_scale({static_cast<uint8_t>(std::min(63, nearest(per_scale * line.scale))),
                     static_cast<uint8_t>(std::min(63, nearest(per_minimum * line.minimum)))},
                    group, block + 4);
  }
  std::array<unsigned, kBlock> numbers;
  for (int group = 0; group < kGroups; ++group) {
    const auto own = group_scale(block + 4, group);
    const float times = read_f16(block) * static_cast<float>(own.scale);
    const float less = read_f16(block + 2) * static_cast<float>(own.minimum);
    const auto& line = lines[static_cast<size_t>(group)];
    for (int i = group * Group::kSize; i < (group + 1) * Group::kSize; ++i) {
      const float exact =
          times == 0 ? line.per_value * (values[i] - line.least) : (values[i] + less) / times;
      numbers[static_cast<size_t>(i)] =
          static_cast<unsigned>(std::clamp(nearest(exact), 0, search.most));
    }
  }
  return numbers;
}

}  // namespace

void write_q4_k(const float* values, std::byte* block) {
  const auto numbers = write_lines(values, {.most = 15, .steps = 20, .first = -1}, block);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto at = i / 32 * 64 + i % 32;
    block[16 + i] = as_byte(numbers[at] | numbers[at + 32] << 4);
  }
}

void write_q5_k(const float* values, std::byte* block) {
  const auto numbers = write_lines(values, {.most = 31, .steps = 15, .first = -0.5F}, block);
  auto *fifths = block + 16, *low = fifths + 32;
  std::memset(fifths, 0, 32);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto at = i / 32 * 64 + i % 32;
    const auto first = numbers[at], second = numbers[at + 32];
    low[i] = as_byte((first & 15) | (second & 15) << 4);
    fifths[i % 32] |= as_byte((first >> 4 | second >> 4 << 1) << (i / 32 * 2));
  }
}

void write_q6_k(const float* values, std::byte* block) {
  constexpr int kGroups = 16, kSize = kBlock / kGroups;
  std::array<Scale, kGroups> scales{};
  float extreme = 0;
  for (size_t group = 0; group < kGroups; ++group) {
    scales[group] = search_scale(values + group * kSize);
    if (std::abs(scales[group].scale) > std::abs(extreme)) extreme = scales[group].scale;
  }
  std::memset(block, 0, 210);
  if (std::abs(extreme) < kLeastScale) return;
  const float per_scale = -128 / extreme;
  write_f16(1 / per_scale, block + 208);
  auto *low = block, *high = block + 128;
  for (int group = 0; group < kGroups; ++group) {
    const auto& found = scales[static_cast<size_t>(group)];
    const int own = std::min(127, nearest(per_scale * found.scale));
    block[192 + group] = static_cast<std::byte>(static_cast<int8_t>(own));
    const float times = read_f16(block + 208) * static_cast<float>(own);
    for (int i = group * kSize; i < (group + 1) * kSize; ++i) {
      const float exact = times == 0 ? found.per_value * values[i] : values[i] / times;
      const int below = found.per_value == 0 ? -32 : std::clamp(nearest(exact), -32, 31);
      const auto number = static_cast<unsigned>(below + 32);
      const int half = i / 128, quarter = i % 128 / 32, column = i % 32;
      low[half * 64 + quarter % 2 * 32 + column] |= as_byte((number & 15) << (quarter / 2 * 4));
      high[half * 32 + column] |= as_byte(number >> 4 << (2 * quarter));
    }
  }
}

}  // namespace tessera::checkpoint
