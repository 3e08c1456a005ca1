#include "tessera/kernels/adamw8bit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/choices.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/observed.h"
#include "tessera/kernels/quantised.h"
#include "tessera/kernels/to_device.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = optim::kStateBlock;
constexpr int64_t kBlocksAtOnce = 16;  // whose parameters are rounded at random together

/// What an update's arithmetic needs.
struct Factors {
  float gradient_scale, keep, decay, blend, decay_sq, blend_sq, step_size, root, eps;

  explicit Factors(const AdamWOptions& options) {
    const auto step = static_cast<double>(options.step);
    gradient_scale = static_cast<float>(options.gradient_scale);
    keep = static_cast<float>(1 - options.learning_rate * options.weight_decay);
    decay = static_cast<float>(options.beta1), blend = static_cast<float>(1 - options.beta1);
    decay_sq = static_cast<float>(options.beta2), blend_sq = static_cast<float>(1 - options.beta2);
    step_size = static_cast<float>(-options.learning_rate / (1 - std::pow(options.beta1, step)));
    root = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, step)));
    eps = static_cast<float>(options.eps);
  }
};

/// A moment's tables and memory.
struct Moment {
  const float* map;
  const uint8_t* places;
  uint8_t* codes;
  float* absmax;

  Moment(const BlockCodes& moment, bool is_signed)
      : map(dynamic_map(is_signed).const_data_ptr<float>()),
        places(dynamic_places(is_signed)),
        codes(moment.codes.mutable_data_ptr<uint8_t>()),
        absmax(moment.absmax.mutable_data_ptr<float>()) {}

  void read(int64_t block, float* values) const {
    const uint8_t* from = codes + block * kBlock;
    const float scale = absmax[block];
    for (int64_t i = 0; i < kBlock; ++i) values[i] = map[from[i]] * scale;
  }

  void write(int64_t block, const float* values, int64_t count = kBlock) const {
    uint8_t* to = codes + block * kBlock;
    float most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));
    absmax[block] = most;
    if (most == 0) {
      std::fill_n(to, count, uint8_t{0});
      return;
    }
    // The inverse of the smallest numbers is infinite. In this order NaN becomes -1, as there.
    const float inverse = 1 / most;
    const auto scaled = [&](float x) { return std::min(1.0f, std::max(-1.0f, x * inverse)); };
    for (int64_t i = 0; i < count; ++i) to[i] = dynamic_place(places, scaled(values[i]));
  }
};

// No compiler makes one rounding of two here (CMakeLists.txt), so that codes are the same on all
// processors.
template <typename G>
void update_block(const Factors& f, const G* gradient, float* p, float* m, float* v) {
  for (int64_t i = 0; i < kBlock; ++i) {
    const float g = static_cast<float>(gradient[i]) * f.gradient_scale;
    m[i] = m[i] * f.decay + g * f.blend;
    v[i] = v[i] * f.decay_sq + f.blend_sq * g * g;
    p[i] = p[i] * f.keep + f.step_size * m[i] / (std::sqrt(v[i]) / f.root + f.eps);
  }
}

/// Blocks [first, last) of at most kBlocksAtOnce.
template <typename P, typename G>
void update_blocks(const at::Tensor& parameter, const at::Tensor& gradient, const Moment& mean,
                   const Moment& square, const AdamWOptions& options, const at::Tensor& copy,
                   int64_t first, int64_t last) {
  const Factors factors(options);
  P* parameters = parameter.mutable_data_ptr<P>();
  const G* gradients = gradient.const_data_ptr<G>();
  alignas(64) float p[kBlocksAtOnce * kBlock], m[kBlock], v[kBlock];
  for (int64_t block = first; block < last; ++block) {
    float* here = p + (block - first) * kBlock;
    std::copy_n(parameters + block * kBlock, kBlock, here);
    mean.read(block, m), square.read(block, v);
    update_block(factors, gradients + block * kBlock, here, m, v);
    mean.write(block, m), square.write(block, v);
  }
  const int64_t begin = first * kBlock, count = (last - first) * kBlock;
  if (copy.defined()) {
    std::copy_n(p, count, copy.mutable_data_ptr<at::BFloat16>() + begin);
  }
  if (options.rounding && parameter.scalar_type() == at::kBFloat16) {
    auto rounding = *options.rounding;
    rounding.first_position += begin;
    round_stochastically(at::from_blob(p, {count}, at::kFloat), parameter.narrow(0, begin, count),
                         rounding);
  } else {
    std::copy_n(p, count, parameters + begin);
  }
}

template <typename P, typename G>
void update_all(const at::Tensor& parameter, const at::Tensor& gradient, const BlockCodes& exp_avg,
                const BlockCodes& exp_avg_sq, const AdamWOptions& options, const at::Tensor& copy) {
  const Moment mean(exp_avg, /*is_signed=*/true), square(exp_avg_sq, /*is_signed=*/false);
  const int64_t num_blocks = parameter.numel() / kBlock;
  parallel_for(0, num_blocks, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kBlocksAtOnce) {
      update_blocks<P, G>(parameter, gradient, mean, square, options, copy, first,
                          std::min(end, first + kBlocksAtOnce));
    }
  });
}

/// block_codes of whole blocks by LibTorch's operators, on any device.
void write_codes(const at::Tensor& values, const BlockCodes& to, bool is_signed) {
  constexpr int64_t kPlaces = 1 << 16;
  const auto places = to_device(
      at::from_blob(const_cast<uint8_t*>(dynamic_places(is_signed)), {kPlaces}, at::kByte),
      values.device());
  const auto blocks = values.view({-1, kBlock});
  const auto most = blocks.abs().amax(1);
  const auto has_scale = (most > 0).unsqueeze(1);
  const auto scaled = (blocks * most.reciprocal().unsqueeze(1)).clamp(-1, 1).nan_to_num(-1);
  const auto place = ((scaled + 1) * 32767.5 + 0.5).to(at::kInt).reshape({-1});
  const auto codes = places.index_select(0, place).view_as(blocks);
  at::Tensor(to.codes).copy_(at::where(has_scale, codes, 0).view({-1}));
  at::Tensor(to.absmax).copy_(most);
}

void update_by_operators(const at::Tensor& parameter, const at::Tensor& gradient,
                         const BlockCodes& exp_avg, const BlockCodes& exp_avg_sq,
                         const AdamWOptions& options, const at::Tensor& copy) {
  const Factors f(options);
  const auto g = gradient.to(at::kFloat) * f.gradient_scale;
  auto mean = block_values(exp_avg, true).mul_(f.decay).add_(g * f.blend);
  auto square = block_values(exp_avg_sq, false).mul_(f.decay_sq).add_(g * f.blend_sq * g);
  const auto denominator = (square.sqrt() / f.root).add_(f.eps);
  const auto value = parameter.to(at::kFloat) * f.keep + mean * f.step_size / denominator;
  write_codes(mean, exp_avg, true);
  write_codes(square, exp_avg_sq, false);
  if (copy.defined()) at::Tensor(copy).copy_(value);
  if (options.rounding && parameter.scalar_type() == at::kBFloat16) {
    round_stochastically(value, parameter, *options.rounding);
  } else {
    at::Tensor(parameter).copy_(value);
  }
}

}  // namespace

BlockCodes block_codes(const at::Tensor& values, bool is_signed) {
  TORCH_INTERNAL_ASSERT(values.is_cpu() && values.scalar_type() == at::kFloat);
  const auto flat = values.contiguous().view({-1});
  const int64_t count = flat.numel(), num_blocks = (count + kBlock - 1) / kBlock;
  BlockCodes result{.codes = at::empty({count}, at::kByte), .absmax = at::empty({num_blocks})};
  const Moment moment(result, is_signed);
  const auto* from = flat.const_data_ptr<float>();
  parallel_for(0, num_blocks, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      moment.write(block, from + block * kBlock, std::min(kBlock, count - block * kBlock));
    }
  });
  return result;
}

at::Tensor block_values(const BlockCodes& moment, bool is_signed) {
  const auto map = to_device(dynamic_map(is_signed), moment.codes.device());
  const auto scales = moment.absmax.repeat_interleave(kBlock).narrow(0, 0, moment.codes.numel());
  return map.index_select(0, moment.codes.to(at::kInt)) * scales;
}

void adamw8bit(const at::Tensor& parameter, const at::Tensor& gradient, const BlockCodes& exp_avg,
               const BlockCodes& exp_avg_sq, const AdamWOptions& options, const at::Tensor& copy) {
  TORCH_INTERNAL_ASSERT(parameter.numel() % kBlock == 0 && parameter.is_contiguous() &&
                        gradient.numel() == parameter.numel() && gradient.is_contiguous());
  if (!parameter.is_cpu()) {
    adamw8bit_reference(parameter, gradient, exp_avg, exp_avg_sq, options, copy);
    return;
  }
  using Update = decltype(&update_all<float, float>);
  constexpr Update kUpdates[2][2] = {
      {update_all<float, float>, update_all<float, at::BFloat16>},
      {update_all<at::BFloat16, float>, update_all<at::BFloat16, at::BFloat16>}};
  const auto index = [](const at::Tensor& x) {
    TORCH_INTERNAL_ASSERT(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
    return x.scalar_type() == at::kBFloat16 ? 1 : 0;
  };
  const Observed run(
      "tessera::adamw8bit",
      {parameter, parameter, gradient, exp_avg.codes, exp_avg.codes, exp_avg.absmax, exp_avg.absmax,
       exp_avg_sq.codes, exp_avg_sq.codes, exp_avg_sq.absmax, exp_avg_sq.absmax, copy});
  kUpdates[index(parameter)][index(gradient)](parameter, gradient, exp_avg, exp_avg_sq, options,
                                              copy);
}

void adamw8bit_reference(const at::Tensor& parameter, const at::Tensor& gradient,
                         const BlockCodes& exp_avg, const BlockCodes& exp_avg_sq,
                         const AdamWOptions& options, const at::Tensor& copy) {
  constexpr int64_t kAtOnce = int64_t{1} << 24;  // several float32 tensors of so many numbers
  const int64_t all = parameter.numel();
  for (int64_t begin = 0; begin < all; begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, all - begin);
    const auto part = [&](const at::Tensor& x) {
      return x.defined() ? x.view({-1}).narrow(0, begin, count) : x;
    };
    const auto blocks = [&](const BlockCodes& moment) {
      return BlockCodes{.codes = part(moment.codes),
                        .absmax = moment.absmax.narrow(0, begin / kBlock, count / kBlock)};
    };
    auto here = options;
    if (here.rounding) here.rounding->first_position += begin;
    update_by_operators(part(parameter), part(gradient), blocks(exp_avg), blocks(exp_avg_sq), here,
                        part(copy));
  }
}

}  // namespace tessera::kernels
