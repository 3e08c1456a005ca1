#include "tessera/kernels/cpu/fused.h"

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>

#include "tessera/kernels/cpu/fused_kernel.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"

namespace tessera::kernels {
namespace {

const FusedTables& vector_code() {
#if defined(__x86_64__)
  static constexpr const FusedTables* kTables[4] = {&generic::fused_tables, &avx2::fused_tables,
                                                    &avx512::fused_tables,
                                                    &avx512_bf16::fused_tables};
  return table_in_use(kTables);
#else
  return generic::fused_tables;
#endif
}

const FusedTable& vector_code(Element type) {
  return type == Element::float32    ? vector_code().float32
         : type == Element::bfloat16 ? vector_code().bfloat16
                                     : vector_code().float16;
}

/// The norms of `x` with a result of `y`: x's type, or one of 16 bits (autocast).
const NormTable& norms(Element x, Element y) {
  return x == y                   ? vector_code(y).norms
         : y == Element::bfloat16 ? vector_code().norms_to_bfloat16
                                  : vector_code().norms_to_float16;
}

/// The sum over rows, float32 [dim]; `add` adds the rows [begin, end) to sums [dim]. The rows are
/// taken in groups that depend on their number alone: the same bits for any number of threads.
at::Tensor sum_over_rows(int64_t rows, int64_t dim,
                         c10::function_ref<void(int64_t begin, int64_t end, float* sums)> add) {
  const int64_t group_rows = std::max<int64_t>(32, (rows + 63) / 64);
  const int64_t groups = std::max<int64_t>(1, (rows + group_rows - 1) / group_rows);
  const auto partial = at::zeros({groups, dim}, at::kFloat);
  float* sums = partial.data_ptr<float>();
  parallel_for(0, groups, grain_of_rows(dim * group_rows), [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      add(group * group_rows, std::min(rows, (group + 1) * group_rows), sums + group * dim);
    }
  });
  for (int64_t group = 1; group < groups; ++group) {
    for (int64_t i = 0; i < dim; ++i) sums[i] += sums[group * dim + i];
  }
  return groups == 1 ? partial[0] : partial[0].clone();
}

/// The same, where run(args, begin, end, sums) adds them.
template <typename Args>
at::Tensor sum_over_rows(const Args& args, int64_t dim,
                         void (*run)(const Args&, int64_t, int64_t, float*)) {
  return sum_over_rows(args.rows, dim, [&](int64_t begin, int64_t end, float* sums) {
    run(args, begin, end, sums);
  });
}

/// Calls run(args, begin, end) for all `rows` of `row_elements` on all threads.
template <typename Args>
void over_rows(const Args& args, int64_t rows, int64_t row_elements,
               void (*run)(const Args&, int64_t, int64_t)) {
  parallel_for(0, rows, grain_of_rows(row_elements),
               [&](int64_t begin, int64_t end) { run(args, begin, end); });
}

void rms_norm(const RmsNormArgs& args) {
  over_rows(args, args.rows, args.dim, norms(args.type, args.y_type).rms_norm);
}

at::Tensor rms_norm_grad(const RmsNormGradArgs& args, at::Device /*device*/) {
  return sum_over_rows(args, args.dim, norms(args.type, args.grad_type).rms_norm_grad);
}

void layer_norm(const LayerNormArgs& args) {
  over_rows(args, args.rows, args.dim, norms(args.type, args.y_type).layer_norm);
}

at::Tensor layer_norm_grad(const LayerNormGradArgs& args, at::Device /*device*/) {
  const auto run = norms(args.type, args.grad_type).layer_norm_grad;
  return sum_over_rows(args, 2 * args.dim, run).view({2, args.dim});
}

void rotary(const RotaryArgs& args) {
  over_rows(args, args.batch * args.tokens, args.heads * args.dim, vector_code(args.type).rotary);
}

void swiglu(const SwigluArgs& args) {
  over_rows(args, args.rows, args.dim, vector_code(args.type).swiglu);
}

void swiglu_grad(const SwigluGradArgs& args) {
  over_rows(args, args.rows, args.dim, vector_code(args.type).swiglu_grad);
}

void gelu_tanh(const GeluArgs& args) {
  const auto& table = vector_code(args.type);
  parallel_for(0, args.count, 8192, [&](int64_t begin, int64_t end) {
    if (args.grad != nullptr) {
      table.gelu_tanh_grad(args.grad, args.x, args.y, begin, end);
    } else {
      table.gelu_tanh(args.x, args.y, begin, end);
    }
  });
}

void cross_entropy(const CrossEntropyArgs& args) {
  over_rows(args, args.rows, args.vocab, vector_code(args.type).cross_entropy);
}

at::Tensor sum_of_rows_on_cpu(const at::Tensor& x) {
  const int64_t dim = x.size(1);
  const auto add = vector_code(element_of(x.scalar_type())).add_rows;
  return sum_over_rows(x.size(0), dim, [&](int64_t begin, int64_t end, float* sums) {
    add(x.const_data_ptr(), dim, begin, end, sums);
  });
}

}  // namespace

const FusedKernels& cpu_kernels() {
  static constexpr FusedKernels kKernels = {.rms_norm = rms_norm,
                                            .rms_norm_grad = rms_norm_grad,
                                            .layer_norm = layer_norm,
                                            .layer_norm_grad = layer_norm_grad,
                                            .rotary = rotary,
                                            .swiglu = swiglu,
                                            .swiglu_grad = swiglu_grad,
                                            .gelu_tanh = gelu_tanh,
                                            .cross_entropy = cross_entropy,
                                            .sum_of_rows = sum_of_rows_on_cpu,
                                            .adamw = adamw_on_cpu,
                                            .round_stochastically = round_on_cpu,
                                            .drop = drop_on_cpu,
                                            .sum_of_squares = sum_of_squares_on_cpu,
                                            .add = nullptr,
                                            .fp8_cast = nullptr};
  return kKernels;
}

int64_t grain_of_rows(int64_t elements_per_row) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements_per_row));
}

}  // namespace tessera::kernels
