#include "tessera/kernels/quantised.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/cpu/quantised.h"
#include "tessera/kernels/to_device.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kReadAtOnce = 1 << 18;  // numbers, for each thread
constexpr int64_t kSummedAtOnce = 32768;  // at::sum starts threads from there on

// Dettmers et al., QLoRA, appendix E; FP4: sign, then the other three bits as the peer orders them.
constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
constexpr std::array<float, 16> kFp4 = {0.0f,
                                        0.0052083334885537624f,
                                        0.6666666865348816f,
                                        1.0f,
                                        0.3333333432674408f,
                                        0.5f,
                                        0.1666666716337204f,
                                        0.25f,
                                        0.0f,
                                        -0.0052083334885537624f,
                                        -0.6666666865348816f,
                                        -1.0f,
                                        -0.3333333432674408f,
                                        -0.5f,
                                        -0.1666666716337204f,
                                        -0.25f};

/// The order of a code's values, and the midpoints between neighbours.
struct Bounds {
  std::array<uint8_t, 16> order{};
  std::array<float, 15> bounds{};

  Bounds(const std::array<float, 16>& values, const std::array<uint8_t, 16>& order) : order(order) {
    for (size_t i = 0; i < bounds.size(); ++i) {
      bounds[i] = (values[order[i]] + values[order[i + 1]]) / 2;
    }
  }
};

const Bounds& bounds_of(WeightFormat format) {
  static const Bounds nf4(kNf4, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  static const Bounds fp4(kFp4, {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3});
  return format == WeightFormat::fp4 ? fp4 : nf4;
}

/// Four bytes each.
at::Tensor floats_in(const at::Tensor& bytes) { return bytes.view(at::kFloat); }
at::Tensor bytes_of(const at::Tensor& floats, const std::vector<int64_t>& shape) {
  return floats.contiguous().view(at::kByte).view(shape);
}

float mean_of(const at::Tensor& values) {
  if (values.numel() <= kSummedAtOnce) return values.mean().item<float>();
  double sum = 0;
  for (const auto& part : values.split(kSummedAtOnce)) sum += part.sum().item<float>();
  return static_cast<float>(sum / static_cast<double>(values.numel()));
}

/// Absmax [blocks] -> codes [blocks], absmax of 256 of them, and their mean.
void quantise_absmax(const at::Tensor& absmax, Quantised& to) {
  const float offset = mean_of(absmax);
  const int64_t count = absmax.numel();
  const float* values = absmax.const_data_ptr<float>();
  const uint8_t* places = dynamic_places(/*is_signed=*/true);
  const auto codes = at::empty({count}, at::kByte);
  const auto nested = at::empty({(count + kNestedBlock - 1) / kNestedBlock});
  parallel_for(0, nested.numel(), 64, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * kNestedBlock, end = std::min(count, begin + kNestedBlock);
      float most = 0;
      for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(values[i] - offset));
      nested.mutable_data_ptr<float>()[b] = most;
      const float inverse = most == 0 ? 0 : 1 / most;
      for (int64_t i = begin; i < end; ++i) {
        codes.mutable_data_ptr<uint8_t>()[i] =
            most == 0 ? uint8_t{0} : dynamic_place(places, (values[i] - offset) * inverse);
      }
    }
  });
  to.absmax = codes;
  to.nested_absmax = nested;
  to.nested_offset = at::full({1}, offset);
}

/// Calls quantise_part(first, last, values) for parts of `count` rows or blocks of `size` elements each,
/// on all threads.
template <typename QuantisePart>
void read_in_parts(const ReadPart& read, int64_t count, int64_t size, int64_t elements,
                   const QuantisePart& quantise_part) {
  const int64_t at_once = std::max<int64_t>(1, kReadAtOnce / size);
  parallel_for(0, count, at_once, [&](int64_t first, int64_t last) {
    const auto space = at::empty({std::min(at_once, last - first) * size});
    for (int64_t i = first; i < last; i += at_once) {
      const int64_t end = std::min(last, i + at_once);
      const auto values = space.narrow(0, 0, std::min(elements, end * size) - i * size);
      read(i * size, values);
      quantise_part(i, end, values);
    }
  });
}

Quantised quantise_rows(const ReadPart& read, Quantised to) {
  const int64_t out = to.shape.out, in = to.shape.in;
  const auto absmax = at::empty({out});
  to.codes = at::empty({out, in}, at::kByte);
  read_in_parts(read, out, in, out * in, [&](int64_t first, int64_t last, const at::Tensor& part) {
    const auto rows = part.view({last - first, in});
    const auto most = std::get<0>(rows.abs().max(1, /*keepdim=*/true));
    const auto codes = at::where(most > 0, at::round(rows * (127.0 / most)), 0).to(at::kChar);
    to.codes.slice(0, first, last).copy_(codes.view(at::kByte));
    absmax.slice(0, first, last).copy_(most.squeeze(1));
  });
  to.absmax = bytes_of(absmax, {out, 4});
  return to;
}

Quantised quantise_blocks(const ReadPart& read, Quantised to) {
  const auto& shape = to.shape;
  const int64_t elements = shape.out * shape.in, block = shape.block;
  const int64_t blocks = (elements + block - 1) / block;
  const auto& bounds = bounds_of(shape.format);
  const QuantiseArgs args{
      .bounds = bounds.bounds.data(), .order = bounds.order.data(), .block = block};
  const auto absmax = at::empty({blocks});
  to.codes = at::empty({(elements + 1) / 2}, at::kByte);
  const auto& table = quantised_table();
  read_in_parts(read, blocks, block, elements,
                [&](int64_t first, int64_t /*last*/, const at::Tensor& values) {
                  table.quantise_4bit(args, values.const_data_ptr<float>(), values.numel(),
                                      absmax.mutable_data_ptr<float>() + first,
                                      to.codes.mutable_data_ptr<uint8_t>() + first * block / 2);
                });
  const auto parts = quantised_parts(shape);
  to.codes = to.codes.view(parts[0].shape);
  if (parts.size() == 2) {
    to.absmax = bytes_of(absmax, parts[1].shape);
    return to;
  }
  quantise_absmax(absmax, to);
  to.absmax = to.absmax.view(parts[1].shape);
  to.nested_absmax = bytes_of(to.nested_absmax, parts[2].shape);
  to.nested_offset = bytes_of(to.nested_offset, parts[3].shape);
  return to;
}

const std::array<float, 16>& values_of(WeightFormat format) {
  return format == WeightFormat::fp4 ? kFp4 : kNf4;
}

at::Tensor absmax_reference(const Quantised& weight) {
  if (weight.shape.format != WeightFormat::nf4_double) return floats_in(weight.absmax).flatten();
  const auto device = weight.absmax.device();
  const auto codes = weight.absmax.flatten();
  auto at_whole = at::arange(codes.numel(), codes.options().dtype(at::kLong));
  if (const auto& stripe = weight.absmax_stripe; !stripe.whole()) {
    at_whole = at_whole.div(stripe.run, "floor") * stripe.stride + at_whole.remainder(stripe.run) +
               stripe.offset;
  }
  const auto nested = floats_in(weight.nested_absmax).flatten();
  const auto values = to_device(dynamic_map(true), device).index_select(0, codes.to(at::kInt));
  return values * nested.index_select(0, at_whole.div(kNestedBlock, "floor")) +
         floats_in(weight.nested_offset);
}

/// Nested absmax [begin, end) in float32, on all threads.
void undo_nested(const Quantised& weight, int64_t begin, int64_t end, float* out) {
  const auto* codes = weight.absmax.const_data_ptr<uint8_t>();
  const auto* absmax =
      reinterpret_cast<const float*>(weight.nested_absmax.const_data_ptr<uint8_t>());
  const float offset =
      *reinterpret_cast<const float*>(weight.nested_offset.const_data_ptr<uint8_t>());
  const float* map = dynamic_map(/*is_signed=*/true).const_data_ptr<float>();
  constexpr int64_t kGrain = 1 << 14;
  parallel_for(begin, end, kGrain, [&](int64_t first, int64_t last) {
    weight.absmax_stripe.for_each_stretch(
        first, last - first, [&](int64_t position, int64_t k, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            out[k - begin + i] = map[codes[k + i]] * absmax[(position + i) / kNestedBlock];
          }
        });
    // Apart, so that no compiler makes one rounding of the two that the peer has.
    for (int64_t i = first; i < last; ++i) out[i - begin] += offset;
  });
}

}  // namespace

Quantised quantise(const QuantisedShape& shape, const ReadPart& read) {
  TORCH_INTERNAL_ASSERT(shape.block > 0 && shape.block % 2 == 0);
  Quantised result{.shape = shape};
  return shape.format == WeightFormat::int8 ? quantise_rows(read, std::move(result))
                                            : quantise_blocks(read, std::move(result));
}

Quantised quantise(const at::Tensor& weight, WeightFormat format, int64_t block) {
  TORCH_INTERNAL_ASSERT(weight.dim() == 2 && weight.device().is_cpu());
  const auto flat = weight.detach().contiguous().view({-1});
  return quantise({.format = format, .out = weight.size(0), .in = weight.size(1), .block = block},
                  [&](int64_t begin, const at::Tensor& part) {
                    part.copy_(flat.narrow(0, begin, part.numel()));
                  });
}

namespace {

/// Rows begin .. end on the host, in bfloat16 or float32.
at::Tensor rows_of(const Quantised& weight, int64_t begin, int64_t end, bool bfloat16) {
  const int64_t in = weight.shape.in;
  auto result = at::empty({end - begin, in}, bfloat16 ? at::kBFloat16 : at::kFloat);
  auto* place = static_cast<char*>(result.mutable_data_ptr());
  const int64_t row_bytes = in * result.element_size();
  parallel_for(begin, end, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, in)),
               [&](int64_t first, int64_t last) {
                 ScaledCodes(weight, first, last)
                     .dequantise({.depth = in,
                                  .first = first,
                                  .last = last,
                                  .begin = 0,
                                  .count = in,
                                  .out = place + (first - begin) * row_bytes},
                                 bfloat16);
               });
  return result;
}

}  // namespace

at::Tensor dequantise(const Quantised& weight, at::ScalarType dtype) {
  if (!weight.codes.device().is_cpu()) return dequantise_reference(weight, dtype);
  return rows_of(weight, 0, weight.shape.out, dtype == at::kBFloat16).to(dtype);
}

at::Tensor dequantise_rows(const Quantised& weight, int64_t first, int64_t last) {
  if (!weight.codes.device().is_cpu()) {
    return dequantise_reference(weight, at::kFloat).slice(0, first, last);
  }
  return rows_of(weight, first, last, /*bfloat16=*/false);
}

at::Tensor squared_row_norms(const Quantised& weight) {
  if (!weight.codes.device().is_cpu()) {
    return dequantise_reference(weight, at::kFloat).square_().sum(1);
  }
  const int64_t out = weight.shape.out;
  const int64_t at_once =
      std::max<int64_t>(1, kReadAtOnce * at::get_num_threads() / weight.shape.in);
  auto sums = at::empty({out});
  for (int64_t first = 0; first < out; first += at_once) {
    const int64_t last = std::min(out, first + at_once);
    auto part = sums.slice(0, first, last);
    at::sum_out(part, dequantise_rows(weight, first, last).square_(), 1);
  }
  return sums;
}

at::Tensor dequantise_reference(const Quantised& weight, at::ScalarType dtype) {
  const auto& shape = weight.shape;
  const auto device = weight.codes.device();
  if (shape.format == WeightFormat::int8) {
    const auto scaled = weight.codes.view(at::kChar).to(at::kFloat) * floats_in(weight.absmax);
    return (scaled * kInt8Reciprocal).to(dtype);
  }
  const int64_t elements = shape.out * shape.in;
  const auto codes = weight.codes.flatten();
  const auto both = at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, 1);
  const auto values = to_device(values_of_codes(shape.format), device);
  const auto of_codes = values.index_select(0, both.flatten().to(at::kInt)).narrow(0, 0, elements);
  const auto scales = absmax_reference(weight).repeat_interleave(shape.block);
  return (of_codes * scales.narrow(0, 0, elements)).view({shape.out, shape.in}).to(dtype);
}

at::Tensor values_of_codes(WeightFormat format) {
  const auto& values = values_of(format);
  return at::tensor(at::ArrayRef<float>(values.data(), values.size()));
}

const QuantisedTable& quantised_table() {
#if defined(__x86_64__)
  static constexpr const QuantisedTable* kTables[4] = {
      &generic::quantised_table, &avx2::quantised_table, &avx512::quantised_table,
      &avx512_bf16::quantised_table};
  return table_in_use(kTables);
#else
  return generic::quantised_table;
#endif
}

ScaledCodes::ScaledCodes(const Quantised& weight, int64_t first, int64_t last)
    : four_bits_(weight.shape.format != WeightFormat::int8) {
  const auto* codes = weight.codes.const_data_ptr<uint8_t>();
  const auto* absmax = reinterpret_cast<const float*>(weight.absmax.const_data_ptr<uint8_t>());
  const int64_t in = weight.shape.in, block = weight.shape.block;
  int64_t begin = 0;
  if (weight.shape.format == WeightFormat::nf4_double) {
    begin = first * in / block;
    const int64_t end = (last * in + block - 1) / block;
    scales_.resize(end - begin);
    undo_nested(weight, begin, end, scales_.data());
    absmax = scales_.data();
  }
  if (four_bits_) {
    four_ = {.codes = codes,
             .absmax = absmax,
             .values = values_of(weight.shape.format).data(),
             .first_block = begin,
             .block = block};
  } else {
    eight_ = {.codes = reinterpret_cast<const int8_t*>(codes), .absmax = absmax, .first = 0};
  }
}

void ScaledCodes::dequantise(const TileArgs& tile, bool bfloat16) const {
  const auto& table = quantised_table();
  const int type = bfloat16 ? 1 : 0;
  four_bits_ ? table.dequantise_4bit[type](four_, tile) : table.dequantise_8bit[type](eight_, tile);
}

void ScaledCodes::multiply_few_rows(const FewRowsArgs& product) const {
  const auto& table = quantised_table();
  four_bits_ ? table.few_rows_4bit(four_, product) : table.few_rows_8bit(eight_, product);
}

const at::Tensor& dynamic_map(bool is_signed) {
  const auto make = [](bool with_sign) {
    constexpr int kExponents = 7;
    std::vector<at::Tensor> values = {at::zeros({1}), at::ones({1})};
    for (int i = 0; i < kExponents; ++i) {
      const int64_t bounds = (int64_t{1} << (with_sign ? i : i + 1)) + 1;
      const auto edges = at::linspace(0.1, 1, bounds, at::kFloat);
      const auto means = (edges.narrow(0, 0, bounds - 1) + edges.narrow(0, 1, bounds - 1)) / 2.0;
      const auto scaled = means * std::pow(10.0, i - kExponents + 1);
      values.push_back(scaled);
      if (with_sign) values.push_back(-scaled);
    }
    return std::get<0>(at::cat(values).sort());
  };
  static const at::Tensor kSigned = make(true), kUnsigned = make(false);
  return is_signed ? kSigned : kUnsigned;
}

const uint8_t* dynamic_places(bool is_signed) {
  constexpr int kPlaces = 1 << 16;
  const auto make = [](const at::Tensor& map) {
    const float* values = map.const_data_ptr<float>();
    std::vector<uint8_t> places(kPlaces);
    for (int i = 0; i < kPlaces; ++i) {
      const float x = 2.0f * static_cast<float>(i) / (kPlaces - 1) - 1.0f;
      const float* right = std::lower_bound(values + 1, values + 255, x);
      places[static_cast<size_t>(i)] =
          static_cast<uint8_t>((*right - x < x - right[-1] ? right : right - 1) - values);
    }
    return places;
  };
  static const auto kSigned = make(dynamic_map(true)), kUnsigned = make(dynamic_map(false));
  return (is_signed ? kSigned : kUnsigned).data();
}

}  // namespace tessera::kernels
