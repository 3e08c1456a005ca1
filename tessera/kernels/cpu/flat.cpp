// The vector code of flat buffers on LibTorch's threads.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/kernels/cpu/flat_kernel.h"
#include "tessera/kernels/cpu/fused.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kGrain = 16384;

const FlatTable& flat_code() {
#if defined(__x86_64__)
  static constexpr const FlatTable* kTables[4] = {&generic::flat_table, &avx2::flat_table,
                                                  &avx512::flat_table, &avx512_bf16::flat_table};
  return table_in_use(kTables);
#else
  return generic::flat_table;
#endif
}

/// Place of a type in the tables; of what is rounded to, one less.
int place_of(Element type) { return static_cast<int>(type); }

}  // namespace

void adamw_on_cpu(const AdamWArgs& given) {
  AdamWArgs args = given;
  if (args.found_inf != nullptr && *args.found_inf != 0) return;
  if (args.gradient_factor != nullptr) args.gradient_scale *= *args.gradient_factor;
  const auto run = flat_code().adamw[place_of(args.parameter_type)][place_of(args.gradient_type)]
                                    [place_of(args.state_type)];
  parallel_for(0, args.count, kGrain, [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void round_on_cpu(const RoundArgs& args) {
  const auto run = flat_code().round_stochastically[place_of(args.type) - 1];
  parallel_for(0, args.count, kGrain,
               [&](int64_t begin, int64_t end) { run(args.from, args.to, args.bits, begin, end); });
}

void drop_on_cpu(const DropArgs& args) {
  const auto run = flat_code().drop[place_of(args.type)];
  const int64_t row = args.row == 0 ? args.count : args.row;
  for (int64_t first = 0; first < args.count; first += row) {
    DropArgs part = args;
    // The vector code adds an element's place in x and y to this position.
    part.bits.first += first / row * args.row_stride - first;
    parallel_for(first, std::min(args.count, first + row), kGrain,
                 [&](int64_t begin, int64_t end) { run(part, begin, end); });
  }
}

at::Tensor sum_of_squares_on_cpu(const at::Tensor& values) {
  const auto dtype = values.scalar_type();
  const auto squares = dtype == at::kFloat      ? flat_code().squares_of_float
                       : dtype == at::kBFloat16 ? flat_code().squares_of_bfloat16
                                                : flat_code().squares_of_half;
  const auto* data = static_cast<const char*>(values.const_data_ptr());
  const int64_t count = values.numel(), bytes = values.element_size();
  const int64_t num_blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(num_blocks));
  parallel_for(0, num_blocks, 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      sums[static_cast<size_t>(block)] =
          squares(data + first * bytes, std::min(kBlock, count - first));
    }
  });
  return at::scalar_tensor(std::accumulate(sums.begin(), sums.end(), 0.0), at::kDouble);
}

}  // namespace tessera::kernels
