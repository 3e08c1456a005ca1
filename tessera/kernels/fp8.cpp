#include "tessera/kernels/fp8.h"

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/kernels/cpu/fp8_kernel.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kRoundedPerTask = 1 << 15;  // worth a thread's start
constexpr int64_t kColumnsAtOnce = 512;       // whose scales stay in the cache
constexpr double kSmallestAmax = 1e-12;       // torchao's

const Fp8Table& fp8_table() {
#if defined(__x86_64__)
  static constexpr const Fp8Table* kTables[4] = {&generic::fp8_table, &avx2::fp8_table,
                                                 &avx512::fp8_table, &avx512_bf16::fp8_table};
  return table_in_use(kTables);
#else
  return generic::fp8_table;
#endif
}

const Fp8Layout& layout_of(Fp8Type type) {
  return type == Fp8Type::e5m2 ? kE5M2Layout : kE4M3Layout;
}

/// `x` in a form that the vector code takes: contiguous, float32 or bfloat16.
at::Tensor readable(const at::Tensor& x) {
  const bool as_it_is = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return (as_it_is ? x : x.to(at::kFloat)).contiguous();
}
bool is_narrow(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

int64_t ceil_div(int64_t size, int64_t step) { return (size + step - 1) / step; }

const char* at_element(const at::Tensor& x, int64_t i) {
  return static_cast<const char*>(x.const_data_ptr()) + i * x.element_size();
}
char* at_element_of(const at::Tensor& x, int64_t i) {
  return static_cast<char*>(x.data_ptr()) + i * x.element_size();
}

/// The power of two below a positive number.
float power_below(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000u);
}

/// The exponent, biased by 127, of the power of two above.
uint32_t e8m0_above(float x) {
  if (std::isnan(x)) return 0xff;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7fffffu;
  if (exponent >= 0xfe) return 0xfe;
  const bool within_subnormals = exponent == 0 && mantissa <= 0x400000u;
  return exponent + (mantissa > 0 && !within_subnormals ? 1 : 0);
}

float largest_in(const std::vector<float>& values) {
  return values.empty() ? 0 : *std::ranges::max_element(values);
}

/// What rounded numbers are multiplied by; an infinite one among them leaves no scale.
float inverse_of(float scale, float amax) { return std::isfinite(amax) ? 1 / scale : NAN; }

// --- A matrix on the host.

class Rounding {
 public:
  Rounding(const at::Tensor& matrix, const Fp8Scaling& scaling, at::ScalarType values,
           const Fp8RoundOptions& options)
      : x_(readable(matrix)),
        scaling_(scaling),
        options_(options),
        rows_(x_.size(0)),
        columns_(x_.size(1)),
        high_(scaling.rows > 0 ? std::min(scaling.rows, rows_) : rows_),
        wide_(scaling.columns > 0 ? std::min(scaling.columns, columns_) : columns_) {
    result_.values = at::empty(x_.sizes(), x_.options().dtype(values));
  }

  Fp8Rounded whole() && {
    result_.amax = amax_of_all();
    const float scale =
        options_.scale ? *options_.scale : fp8_scale(result_.amax, scaling_.type, scaling_.rule);
    const float inverse = inverse_of(scale, result_.amax);
    const bool exact = scaling_.rule == Fp8ScaleRule::exact;
    result_.factor = exact ? inverse : 1;
    result_.scales = at::full({1, 1}, scale);
    parallel_for(0, x_.numel(), kRoundedPerTask, [&](int64_t begin, int64_t end) {
      round(begin, end - begin, {.scale = scale, .inverse = exact ? 1 : inverse});
    });
    return result();
  }

  /// Each column of `high_` rows has a scale of its own.
  Fp8Rounded by_columns() && {
    result_.scales = at::empty({ceil_div(rows_, high_), columns_});
    over_blocks(kColumnsAtOnce, [&](const Block& block) { return round_columns(block); });
    return result();
  }

  Fp8Rounded by_rectangles() && {
    result_.scales = at::empty({ceil_div(rows_, high_), ceil_div(columns_, wide_)});
    over_blocks(wide_, [&](const Block& block) { return round_rectangle(block); });
    return result();
  }

 private:
  /// One scale, or one for each column.
  struct Scales {
    float scale = 0, inverse = 0;
    const float *scales = nullptr, *inverses = nullptr;
  };

  /// `high_` rows, or what is left of them, and some of their columns.
  struct Block {
    int64_t group, first_row, last_row, column, num_columns;
  };

  /// Calls body(block), which gives the largest magnitude, for all blocks of `wide` columns, on all
  /// threads.
  void over_blocks(int64_t wide, c10::function_ref<float(const Block&)> body) {
    const int64_t parts = ceil_div(columns_, wide), tasks = ceil_div(rows_, high_) * parts;
    const int64_t grain = std::max<int64_t>(1, kRoundedPerTask / (high_ * wide));
    std::vector<float> largest(static_cast<size_t>(tasks));
    parallel_for(0, tasks, grain, [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; ++task) {
        const int64_t group = task / parts, row = group * high_, column = task % parts * wide;
        largest[static_cast<size_t>(task)] =
            body({.group = group,
                  .first_row = row,
                  .last_row = std::min(rows_, row + high_),
                  .column = column,
                  .num_columns = std::min(wide, columns_ - column)});
      }
    });
    result_.amax = largest_in(largest);
  }

  /// Calls body(where it begins) for each row of a block.
  void over_rows(const Block& block, c10::function_ref<void(int64_t begin)> body) const {
    for (int64_t row = block.first_row; row < block.last_row; ++row) {
      body(row * columns_ + block.column);
    }
  }

  Fp8Rounded result() {
    result_.underflows = underflows_;
    return std::move(result_);
  }

  void round(int64_t begin, int64_t count, const Scales& by) {
    underflows_ += table_.round[is_narrow(x_)][is_narrow(result_.values)](
        {.x = at_element(x_, begin),
         .out = at_element_of(result_.values, begin),
         .count = count,
         .scale = by.scale,
         .inverse = by.inverse,
         .scales = by.scales,
         .inverses = by.inverses,
         .e5m2 = scaling_.type == Fp8Type::e5m2,
         .counts = options_.counts});
  }

  float amax(int64_t begin, int64_t count) const {
    return table_.amax[is_narrow(x_)](at_element(x_, begin), count);
  }

  float amax_of_all() const {
    const int64_t parts = ceil_div(x_.numel(), kRoundedPerTask);
    std::vector<float> largest(static_cast<size_t>(parts));
    parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const int64_t begin = part * kRoundedPerTask;
        largest[part] = amax(begin, std::min(kRoundedPerTask, x_.numel() - begin));
      }
    });
    return largest_in(largest);
  }

  float round_columns(const Block& block) {
    std::array<float, kColumnsAtOnce> largest{}, inverses;
    over_rows(block, [&](int64_t begin) {
      table_.amax_of_columns[is_narrow(x_)](at_element(x_, begin), block.num_columns,
                                            largest.data());
    });
    float* scales = result_.scales.data_ptr<float>() + block.group * columns_ + block.column;
    for (int64_t i = 0; i < block.num_columns; ++i) {
      scales[i] = fp8_scale(largest[i], scaling_.type, scaling_.rule);
      inverses[i] = inverse_of(scales[i], largest[i]);
    }
    over_rows(block, [&](int64_t begin) {
      round(begin, block.num_columns, {.scales = scales, .inverses = inverses.data()});
    });
    return *std::max_element(largest.begin(), largest.begin() + block.num_columns);
  }

  float round_rectangle(const Block& block) {
    float largest = 0;
    over_rows(block,
              [&](int64_t begin) { largest = std::max(largest, amax(begin, block.num_columns)); });
    const float scale = fp8_scale(largest, scaling_.type, scaling_.rule);
    result_.scales.data_ptr<float>()[block.group * result_.scales.size(1) + block.column / wide_] =
        scale;
    over_rows(block, [&](int64_t begin) {
      round(begin, block.num_columns, {.scale = scale, .inverse = inverse_of(scale, largest)});
    });
    return largest;
  }

  const Fp8Table& table_ = fp8_table();
  at::Tensor x_;
  Fp8Scaling scaling_;
  Fp8RoundOptions options_;
  int64_t rows_, columns_, high_, wide_;
  Fp8Rounded result_;
  std::atomic<int64_t> underflows_ = 0;  // of all threads
};

/// The largest magnitudes [R / rows, C / columns] of rectangles.
at::Tensor amax_of_rectangles(const at::Tensor& x, int64_t rows, int64_t columns) {
  const int64_t down = ceil_div(x.size(0), rows), across = ceil_div(x.size(1), columns);
  return at::constant_pad_nd(x.abs(), {0, across * columns - x.size(1), 0, down * rows - x.size(0)})
      .view({down, rows, across, columns})
      .amax({1, 3});
}

}  // namespace

float largest_of(Fp8Type type) { return layout_of(type).largest; }

at::ScalarType dtype_of(Fp8Type type) {
  return type == Fp8Type::e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

at::Tensor to_fp8(const at::Tensor& x, Fp8Type type, float scale, bool saturate) {
  if (!x.device().is_cpu()) {
    auto scaled = x.to(at::kFloat) * scale;
    if (saturate) scaled.clamp_(-largest_of(type), largest_of(type));
    return scaled.to(dtype_of(type));
  }
  const auto from = readable(x);
  auto codes = at::empty(x.sizes(), x.options().dtype(dtype_of(type)));
  auto* out = static_cast<uint8_t*>(codes.data_ptr());
  parallel_for(0, x.numel(), kRoundedPerTask, [&](int64_t begin, int64_t end) {
    fp8_table().encode[is_narrow(from)](at_element(from, begin), end - begin, scale,
                                        type == Fp8Type::e5m2, saturate, out + begin);
  });
  return codes;
}

at::Tensor from_fp8(const at::Tensor& codes, at::ScalarType dtype, float factor) {
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16,
                    "from_fp8: expected float32 or bfloat16, got ", dtype);
  if (!codes.device().is_cpu()) return (codes.to(at::kFloat) * factor).to(dtype);
  const auto from = codes.contiguous();
  auto out = at::empty(codes.sizes(), codes.options().dtype(dtype));
  const auto* data = static_cast<const uint8_t*>(from.const_data_ptr());
  parallel_for(0, codes.numel(), kRoundedPerTask, [&](int64_t begin, int64_t end) {
    fp8_table().decode[is_narrow(out)](data + begin, end - begin, factor,
                                       codes.scalar_type() == at::kFloat8_e5m2,
                                       at_element_of(out, begin));
  });
  return out;
}

float fp8_scale(float amax, Fp8Type type, Fp8ScaleRule rule) {
  const float largest = largest_of(type);
  switch (rule) {
    case Fp8ScaleRule::exact:
    case Fp8ScaleRule::power_of_two: {
      const auto scale =
          static_cast<float>(largest / std::max(static_cast<double>(amax), kSmallestAmax));
      return rule == Fp8ScaleRule::exact ? scale : power_below(scale);
    }
    case Fp8ScaleRule::block:
      if (amax == 0 || std::isinf(amax)) return 1;
      return power_below(std::min(largest / amax, FLT_MAX));
    case Fp8ScaleRule::e8m0:
      return std::ldexp(1.0f, 127 - static_cast<int>(e8m0_above(amax * (1 / largest))));
  }
  __builtin_unreachable();
}

Fp8Rounded round_to_fp8(const at::Tensor& matrix, const Fp8Scaling& scaling, at::ScalarType values,
                        const Fp8RoundOptions& options) {
  TORCH_INTERNAL_ASSERT(matrix.dim() == 2);
  if (!matrix.device().is_cpu()) return round_to_fp8_reference(matrix, scaling, values, options);
  if (!matrix.is_contiguous() && matrix.t().is_contiguous()) {
    auto result = round_to_fp8(matrix.t(), scaling.transposed(), values, options);
    result.values = result.values.t(), result.scales = result.scales.t();
    return result;
  }
  Rounding rounding(matrix, scaling, values, options);
  if (scaling.rows == 0 && scaling.columns == 0) return std::move(rounding).whole();
  TORCH_INTERNAL_ASSERT(!options.scale && scaling.rule != Fp8ScaleRule::exact);
  return scaling.columns == 1 ? std::move(rounding).by_columns()
                              : std::move(rounding).by_rectangles();
}

Fp8Scales fp8_scales(const at::Tensor& amax, const Fp8Scaling& scaling,
                     std::optional<float> given) {
  Fp8Scales result{at::empty_like(amax), at::empty_like(amax)};
  for (int64_t i = 0; i < amax.numel(); ++i) {
    const float largest = amax.const_data_ptr<float>()[i];
    const float scale = given ? *given : fp8_scale(largest, scaling.type, scaling.rule);
    result.scales.data_ptr<float>()[i] = scale;
    result.inverses.data_ptr<float>()[i] = inverse_of(scale, largest);
  }
  return result;
}

Fp8Rounded round_to_fp8_reference(const at::Tensor& matrix, const Fp8Scaling& scaling,
                                  at::ScalarType values, const Fp8RoundOptions& options) {
  const auto x = matrix.to(at::kFloat);
  const int64_t rows = scaling.rows > 0 ? scaling.rows : x.size(0);
  const int64_t columns = scaling.columns > 0 ? scaling.columns : x.size(1);
  const auto amax = amax_of_rectangles(x, rows, columns).cpu().contiguous();
  const auto [scales, inverses] = fp8_scales(amax, scaling, options.scale);
  const auto spread = [&](const at::Tensor& numbers) {
    return numbers.to(x.device())
        .repeat_interleave(rows, 0)
        .repeat_interleave(columns, 1)
        .narrow(0, 0, x.size(0))
        .narrow(1, 0, x.size(1));
  };
  const float largest = largest_of(scaling.type);
  auto rounded =
      (x * spread(scales)).clamp(-largest, largest).to(dtype_of(scaling.type)).to(at::kFloat);
  Fp8Rounded result{.values = {}, .factor = 1, .scales = scales, .amax = 0};
  if (scaling.rule == Fp8ScaleRule::exact) {
    TORCH_INTERNAL_ASSERT(scaling.rows == 0 && scaling.columns == 0);
    result.factor = inverses.data_ptr<float>()[0];
  } else {
    rounded = rounded * spread(inverses);
  }
  if (amax.numel() > 0) result.amax = amax.max().item<float>();
  result.values = rounded.to(values);
  if (options.counts) result.underflows = num_above(matrix, 0) - num_above(result.values, 0);
  return result;
}

Fp8Losses& Fp8Losses::operator+=(const Fp8Losses& other) {
  numbers += other.numbers, underflows += other.underflows, overflows += other.overflows;
  least_scale = std::min(least_scale, other.least_scale);
  return *this;
}

int64_t num_above(const at::Tensor& matrix, float bound) {
  const auto x = matrix.is_contiguous() ? matrix : matrix.t();
  if (!x.device().is_cpu()) return x.abs().gt(bound).sum().item<int64_t>();
  const auto from = readable(x);
  const int64_t parts = ceil_div(x.numel(), kRoundedPerTask);
  std::vector<int64_t> found(static_cast<size_t>(parts));
  parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * kRoundedPerTask;
      found[static_cast<size_t>(part)] = fp8_table().num_above[is_narrow(from)](
          at_element(from, begin), std::min(kRoundedPerTask, x.numel() - begin), bound);
    }
  });
  return std::accumulate(found.begin(), found.end(), int64_t{0});
}

}  // namespace tessera::kernels
