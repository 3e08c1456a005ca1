#include "tessera/report/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/units.h"

namespace tessera::report {
namespace {

std::vector<double> multiples(double low, double high, double step) {
  std::vector<double> ticks;
  // Ends that are multiples themselves count, in spite of rounding; + 0.0 turns -0 into 0.
  const double first = std::ceil(low / step - 1e-9) + 0.0, last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(std::clamp(i * step, low, high));
  return ticks;
}

std::vector<double> mantissas_times_decades(double low, double high,
                                            const std::vector<double>& mantissas) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const double mantissa : mantissas) {
      const double tick = mantissa * std::pow(10.0, exponent);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

int significant_digits(int64_t value) {
  while (value != 0 && value % 10 == 0) value /= 10;
  return static_cast<int>(fmt::format("{}", std::abs(value)).size());
}

/// Whether "200 K" says all there is to each tick, and some are long enough to want it.
bool short_form_suits(const std::vector<double>& ticks) {
  return std::any_of(ticks.begin(), ticks.end(), [](double t) { return std::abs(t) >= 1e5; }) &&
         std::all_of(ticks.begin(), ticks.end(), [](double t) {
           return t == std::round(t) && std::abs(t) < 1e15 &&
                  significant_digits(std::llround(t)) <= 3;
         });
}

}  // namespace

std::string with_commas(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool between_digits = i > 0 && digits[i - 1] != '-';
    if (between_digits && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string clock_time(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "-:--";
  const int64_t whole = std::llround(seconds);
  const int64_t minutes = whole / 60, hours = whole / 3600, days = whole / 86400;
  if (hours == 0) return fmt::format("{}:{:02}", minutes, whole % 60);
  if (days == 0) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, whole % 60);
  return fmt::format("{}d {:02}:{:02}", days, hours % 24, minutes % 60);
}

std::vector<double> linear_ticks(double low, double high, int max_count, bool integral) {
  double decade = std::pow(10.0, std::floor(std::log10((high - low) / max_count)));
  if (integral) decade = std::max(decade, 1.0);
  for (;; decade *= 10) {
    for (const double mantissa : {1.0, 2.0, 5.0}) {
      auto ticks = multiples(low, high, mantissa * decade);
      if (static_cast<int>(ticks.size()) <= max_count) return ticks;
    }
  }
}

std::vector<double> log_ticks(double low, double high, int max_count) {
  auto ticks = mantissas_times_decades(low, high, {1, 2, 5});
  if (ticks.size() < 2) return linear_ticks(low, high, max_count);
  const auto limit = static_cast<size_t>(max_count);
  if (ticks.size() <= limit) return ticks;
  const auto decades = mantissas_times_decades(low, high, {1});
  if (decades.size() < 2) return linear_ticks(low, high, max_count);
  const size_t stride = (decades.size() + limit - 1) / limit;
  ticks.clear();
  for (size_t i = 0; i < decades.size(); i += stride) ticks.push_back(decades[i]);
  return ticks;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks) {
  const size_t count = ticks.size();
  const double gap = count > 1 ? ticks[1] - ticks[0] : 0;
  const bool even =
      gap >= 1e-6 && std::abs(ticks[count - 1] - ticks[0] - gap * (count - 1)) < 0.01 * gap;
  const int decimals = even ? std::max(0, static_cast<int>(std::ceil(-std::log10(gap) - 1e-9))) : 0;
  const bool short_form = short_form_suits(ticks);
  std::vector<std::string> labels;
  for (const double tick : ticks) {
    if (decimals > 0) {
      labels.push_back(fmt::format("{:.{}f}", tick, decimals));
    } else if (tick == std::round(tick) && std::abs(tick) < 1e15) {
      labels.push_back(short_form ? format_count(tick) : with_commas(std::llround(tick)));
    } else {
      labels.push_back(fmt::format("{:.6g}", tick));
    }
  }
  return labels;
}

}  // namespace tessera::report
