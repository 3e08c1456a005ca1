// Numbers as they are printed in progress lines and on axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::report {

/// 1234567 as "1,234,567".
std::string with_commas(int64_t value);

/// Seconds as a clock: "0:31", "12:05", "3:04:59", "2d 03:04". Non-finite or negative: "-:--".
std::string clock_time(double seconds);

/// The ticks of a linear axis: multiples, inside [low, high], of the smallest step 1, 2 or 5 times
/// a power of ten that gives at most `max_count` of them (and at least floor(max_count / 2.5)).
/// `integral`: the step is at least 1, which can leave fewer. Needs finite low < high and max_count
/// >= 2.
std::vector<double> linear_ticks(double low, double high, int max_count, bool integral = false);

/// The ticks of a logarithmic axis inside [low, high], 0 < low < high: 1, 2, 5 times powers of ten
/// if at most `max_count`, else powers of ten, thinned evenly if need be; linear_ticks if fewer
/// than two of these fit.
std::vector<double> log_ticks(double low, double high, int max_count);

/// Labels of `ticks` with as many decimals as tell them apart: "0.5", "1,000", "200 K", "1e-05".
std::vector<std::string> tick_labels(const std::vector<double>& ticks);

}  // namespace tessera::report
