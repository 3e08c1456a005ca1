#include "drawn_digits.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

namespace drawn {
namespace {

struct Point {
  double x = 0, y = 0;
};

/// A digit as strokes in the square [-1, 1]^2, y downwards; NaN lifts the pen.
using Strokes = std::vector<Point>;
const double kLift = std::nan("");

const std::array<Strokes, 10>& strokes_of_digits() {
  static const std::array<Strokes, 10> strokes{
      Strokes{{0, -1},
              {.45, -.75},
              {.6, 0},
              {.45, .75},
              {0, 1},
              {-.45, .75},
              {-.6, 0},
              {-.45, -.75},
              {0, -1}},
      Strokes{{-.35, -.6}, {.1, -1}, {.1, 1}},
      Strokes{{-.55, -.6}, {-.3, -.95}, {.25, -.95}, {.5, -.55}, {.35, -.1}, {-.6, 1}, {.6, 1}},
      Strokes{{-.5, -.8},
              {0, -1},
              {.45, -.75},
              {.4, -.3},
              {-.1, -.05},
              {.45, .2},
              {.5, .7},
              {0, 1},
              {-.55, .8}},
      Strokes{{.3, 1}, {.3, -1}, {-.6, .35}, {.65, .35}},
      Strokes{{.5, -1}, {-.4, -1}, {-.5, -.1}, {.1, -.25}, {.5, .1}, {.5, .65}, {0, 1}, {-.55, .8}},
      Strokes{{.4, -1},
              {-.2, -.6},
              {-.5, .1},
              {-.45, .75},
              {0, 1},
              {.45, .75},
              {.45, .25},
              {0, 0},
              {-.45, .3}},
      Strokes{{-.6, -1}, {.6, -1}, {-.1, 1}, {kLift, 0}, {-.25, 0}, {.5, 0}},
      Strokes{{0, -.05},
              {-.4, -.4},
              {-.35, -.8},
              {0, -1},
              {.35, -.8},
              {.4, -.4},
              {0, -.05},
              {-.5, .35},
              {-.4, .85},
              {0, 1},
              {.4, .85},
              {.5, .35},
              {0, -.05}},
      Strokes{{.45, -.4},
              {.1, 0},
              {-.35, -.1},
              {-.5, -.5},
              {-.3, -.9},
              {.1, -1},
              {.45, -.7},
              {.45, -.1},
              {.2, 1}}};
  return strokes;
}

/// Uniform numbers from splitmix64 (Steele et al., OOPSLA 2014), keyed by (seed, index).
class Random {
 public:
  Random(uint64_t seed, int64_t index)
      : state_(mix(seed * kGolden + 1) ^ mix(static_cast<uint64_t>(index) + kGolden)) {}

  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53;
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(next() % static_cast<uint64_t>(end)); }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  uint64_t next() { return mix(state_ += kGolden); }

  uint64_t state_;
};

/// The digit's strokes in pixels, under a random affine map.
Strokes placed_strokes(int64_t digit, Random& random) {
  const double size = random.uniform(7, 10), narrow = random.uniform(.8, 1.15);
  const double turn = random.uniform(-.2, .2), shear = random.uniform(-.25, .25);
  const double shift_x = random.uniform(-2.5, 2.5), shift_y = random.uniform(-2.5, 2.5);
  const double centre = (kDigitSize - 1) / 2.;
  Strokes strokes = strokes_of_digits()[static_cast<size_t>(digit)];
  for (auto& [x, y] : strokes) {
    const double wobbly_x = x + random.uniform(-.06, .06), wobbly_y = y + random.uniform(-.06, .06);
    x = centre + shift_x + size * narrow * (wobbly_x + (shear - turn) * wobbly_y);
    y = centre + shift_y + size * (wobbly_y + turn * wobbly_x);
  }
  return strokes;
}

double distance_to_segment(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length = dx * dx + dy * dy;
  const double along = ((p.x - a.x) * dx + (p.y - a.y) * dy) / std::max(length, 1e-9);
  const double t = std::clamp(along, 0., 1.);
  const double to_x = p.x - a.x - t * dx, to_y = p.y - a.y - t * dy;
  return std::sqrt(to_x * to_x + to_y * to_y);
}

int64_t draw_digit(uint64_t seed, int64_t index, std::span<float> pixels) {
  Random random(seed, index);
  const int64_t digit = random.below(10);
  const auto strokes = placed_strokes(digit, random);
  const double radius = random.uniform(.8, 1.7), ink = random.uniform(.7, 1);
  const double noise = random.uniform(.05, .2);
  for (int64_t i = 0; i < kDigitSize * kDigitSize; ++i) {
    const Point p{static_cast<double>(i % kDigitSize), static_cast<double>(i / kDigitSize)};
    double distance = kDigitSize;
    for (size_t s = 1; s < strokes.size(); ++s) {
      if (std::isnan(strokes[s - 1].x) || std::isnan(strokes[s].x)) continue;
      distance = std::min(distance, distance_to_segment(p, strokes[s - 1], strokes[s]));
    }
    // One pixel of grey at the edge of a stroke.
    const double covered = std::clamp(radius + .5 - distance, 0., 1.);
    pixels[static_cast<size_t>(i)] =
        static_cast<float>(ink * covered + random.uniform(-noise, noise));
  }
  return digit;
}

}  // namespace

Digits draw_digits(uint64_t seed, int64_t begin, int64_t end) {
  Digits digits{.images = at::empty({end - begin, 1, kDigitSize, kDigitSize}, at::kFloat),
                .labels = at::empty({end - begin}, at::kLong)};
  constexpr int64_t kPixels = kDigitSize * kDigitSize;
  auto* const pixels = digits.images.mutable_data_ptr<float>();
  auto* const labels = digits.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < end - begin; ++i) {
    labels[i] = draw_digit(seed, begin + i, {pixels + i * kPixels, static_cast<size_t>(kPixels)});
  }
  return digits;
}

}  // namespace drawn
