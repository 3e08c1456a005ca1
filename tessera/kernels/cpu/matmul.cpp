#include "tessera/kernels/cpu/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/base/page_buffer.h"
#include "tessera/kernels/cpu/gemv_kernel.h"
#include "tessera/kernels/cpu/isa.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/kernels/cpu/tile_product.h"
#include "tessera/kernels/observed.h"

// MKL inside LibTorch exports it, but the headers are not in the wheel. Weak: other builds of
// LibTorch have no MKL.
extern "C" [[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m,
                                                     int n, int k, float alpha, const void* a,
                                                     int lda, const void* b, int ldb, float beta,
                                                     float* c, int ldc);

// Note [MKL's instructions] in isa.cpp: if MKL keeps to AVX2, its bfloat16 product is four times
// slower than oneDNN's.
extern "C" int mkl_serv_intel_cpu_true();

namespace tessera::kernels {
namespace {

constexpr int kRowMajor = 101;  // CblasRowMajor, CblasNoTrans, CblasTrans
constexpr int kPlain = 111;
constexpr int kTransposed = 112;

/// A tensor in `space`, as large as `block` and laid out alike.
at::Tensor place(const at::Tensor& space, const at::Tensor& block) {
  const bool plain = block.stride(1) == 1;
  const int64_t rows = block.size(0), columns = block.size(1);
  return space.as_strided({rows, columns}, {plain ? columns : 1, plain ? 1 : rows},
                          /*storage_offset=*/0);
}

/// `block` in float32, in `space`.
at::Tensor widen(const at::Tensor& space, const at::Tensor& block) {
  return place(space, block).copy_(block);
}

/// Multiplies block by block, so that the copies stay small beside the operands and in the cache.
void multiply_widened(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool accumulate,
                      float factor) {
  const int64_t rows = out.size(0), columns = out.size(1), depth = a.size(1);
  const auto space = [&](int64_t height, int64_t width) {
    return at::empty({std::min(height, kWidenedBlock) * std::min(width, kWidenedBlock)},
                     out.options().dtype(at::kFloat));
  };
  const auto space_a = space(rows, depth), space_b = space(depth, columns);
  const bool narrow = out.scalar_type() != at::kFloat;
  const auto space_out = narrow ? space(rows, columns) : at::Tensor();
  const auto block = [](const at::Tensor& x, int64_t row, int64_t column) {
    return x.narrow(0, row, std::min(kWidenedBlock, x.size(0) - row))
        .narrow(1, column, std::min(kWidenedBlock, x.size(1) - column));
  };
  for (int64_t column = 0; column < columns; column += kWidenedBlock) {
    for (int64_t row = 0; row < rows; row += kWidenedBlock) {
      auto target = block(out, row, column);
      auto sum = narrow ? place(space_out, target) : target;
      if (narrow && accumulate) sum.copy_(target);
      for (int64_t inner = 0; inner < depth; inner += kWidenedBlock) {
        const float keep = accumulate || inner > 0 ? 1 : 0;
        sum.addmm_(widen(space_a, block(a, row, inner)), widen(space_b, block(b, inner, column)),
                   /*beta=*/keep, factor);
      }
      if (narrow) target.copy_(sum);
    }
  }
}

const GemvTable& gemv_table() {
#if defined(__x86_64__)
  static constexpr const GemvTable* kTables[4] = {&generic::gemv_table, &avx2::gemv_table,
                                                  &avx512::gemv_table, &avx512_bf16::gemv_table};
  return table_in_use(kTables);
#else
  return generic::gemv_table;
#endif
}

/// A few rows, as where a text is made token by token: what such a product takes is the matrix.
bool is_gemv(const at::Tensor& out, const at::Tensor& a) {
  const auto type = a.scalar_type();
  return a.size(0) <= kGemvRows && a.numel() > 0 && a.device().is_cpu() && a.is_contiguous() &&
         out.is_contiguous() && (type == at::kFloat || type == at::kBFloat16);
}

/// `out` where its numbers are read before they are written; else nothing.
const at::Tensor& read_too(const at::Tensor& out, bool accumulate) {
  static const at::Tensor nothing;
  return accumulate ? out : nothing;
}

void multiply_few_rows(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                       bool accumulate) {
  constexpr int64_t kNumbersPerTask = 1 << 16;  // worth a thread's start
  const int64_t depth = b.size(0), columns = b.size(1);
  const bool by_depth = b.is_contiguous();
  const auto& table = gemv_table();
  const auto product =
      (by_depth ? table.by_depth : table.by_columns)[a.scalar_type() == at::kBFloat16]
                                                    [out.scalar_type() == at::kBFloat16];
  const bool splits = a.scalar_type() == at::kBFloat16 && !by_depth;
  at::Tensor split;
  if (splits) {
    split = at::empty({a.size(0), split_depth(depth)}, a.options().dtype(at::kFloat));
    table.split_pairs(a.const_data_ptr(), a.size(0), depth, split.data_ptr<float>());
  }
  const auto& x = splits ? split : a;
  const Observed run("tessera::multiply", {x, b, out, read_too(out, accumulate)});
  const GemvArgs args{.x = x.const_data_ptr(),
                      .x_stride = x.size(1),
                      .matrix = b.const_data_ptr(),
                      .out = out.data_ptr(),
                      .rows = a.size(0),
                      .depth = depth,
                      .columns = columns,
                      .accumulate = accumulate};
  parallel_for(0, columns, std::max<int64_t>(1, kNumbersPerTask / depth),
               [&](int64_t begin, int64_t end) { product(args, begin, end); });
}

/// Not the transpose of a matrix in memory.
bool is_plain(const at::Tensor& matrix) { return matrix.stride(1) == 1; }

/// Do the numbers of its rows or of its columns lie together?
bool is_tile_matrix(const at::Tensor& x) { return x.stride(0) == 1 || is_plain(x); }

/// `x` as MKL takes it: rows, or columns, that do not overlap.
at::Tensor laid_out(const at::Tensor& x) {
  const int64_t along = is_plain(x) ? 1 : 0;
  const bool fits =
      x.stride(along) == 1 && (x.size(1 - along) == 1 || x.stride(1 - along) >= x.size(along));
  return fits ? x : x.contiguous();
}

/// out in float32, a and b in bfloat16. MKL's.
void multiply_bf16_into_float(const at::Tensor& out, const at::Tensor& left,
                              const at::Tensor& right, bool accumulate, float factor) {
  const auto a = laid_out(left), b = laid_out(right);
  const auto leading = [&](const at::Tensor& x) {
    const int along = is_plain(x) ? 1 : 0;
    return static_cast<int>(std::max(x.stride(1 - along), x.size(along)));
  };
  const Observed run("tessera::multiply", {a, b, out, read_too(out, accumulate)});
  cblas_gemm_bf16bf16f32(
      kRowMajor, is_plain(a) ? kPlain : kTransposed, is_plain(b) ? kPlain : kTransposed,
      static_cast<int>(a.size(0)), static_cast<int>(b.size(1)), static_cast<int>(a.size(1)), factor,
      a.const_data_ptr(), leading(a), b.const_data_ptr(), leading(b), accumulate ? 1.0f : 0.0f,
      out.data_ptr<float>(), static_cast<int>(out.size(1)));
}

/// LibTorch's product of bfloat16 compiles itself for each new shape, which takes about as long as a small product, and
/// keeps the code of the last 1,024: half a gigabyte. Where shapes come again and again it is the fastest, by some
/// 7 %. Numbers of an expert's rows hardly do: those that are no multiple of 32 are taken for such. In a weight's
/// gradient rows are what is summed over. By the shape alone, so that results do not depend on what came before.
bool hardly_comes_again(const at::Tensor& a) {
  constexpr int64_t kUsual = 32;
  return a.size(is_plain(a) ? 0 : 1) % kUsual != 0;
}

/// out in bfloat16, too, rounded once: block by block in float32, which stays in the cache.
void multiply_through_float(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                            bool accumulate, float factor) {
  constexpr int64_t kNumbers = 1 << 19, kWidest = 4096;
  const int64_t rows = out.size(0), columns = out.size(1), width = std::min(columns, kWidest);
  const int64_t height = std::min(rows, std::max<int64_t>(1, kNumbers / width));
  const auto space = at::empty({height * width}, out.options().dtype(at::kFloat));
  for (int64_t column = 0; column < columns; column += width) {
    const auto factors = b.narrow(1, column, std::min(width, columns - column));
    for (int64_t row = 0; row < rows; row += height) {
      const auto given = a.narrow(0, row, std::min(height, rows - row));
      const int64_t count = given.size(0) * factors.size(1);
      const auto sum = space.narrow(0, 0, count).view({given.size(0), factors.size(1)});
      multiply_bf16_into_float(sum, given, factors, /*accumulate=*/false, factor);
      auto target = out.narrow(0, row, given.size(0)).narrow(1, column, factors.size(1));
      accumulate ? target.add_(sum) : target.copy_(sum);
    }
  }
}

bool goes_into_float(const at::Tensor& a) {
  return a.device().is_cpu() && a.scalar_type() == at::kBFloat16 && multiplies_bf16_into_float();
}

#if defined(__x86_64__)
/// Does the processor multiply these by tiles, and are there enough of them? Of bfloat16 a left factor by columns, as a weight's gradient
/// has it, is left to the library.
bool is_tiled(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kFewestRows = 64, kFewest = 32;
  const auto type = a.scalar_type();
  const bool fits = type == at::kFloat ? is_tile_matrix(a) : type == at::kBFloat16 && is_plain(a);
  return current_isa() >= Isa::amx_bf16 && a.device().is_cpu() && fits && is_tile_matrix(b) &&
         b.scalar_type() == type && is_plain(out) &&
         (out.scalar_type() == type || out.scalar_type() == at::kFloat) &&
         a.size(0) >= kFewestRows && b.size(0) >= kFewest && b.size(1) >= kFewest;
}

/// Rows and columns of a part, so that there is one for each thread and little is packed twice. A number of b is taken for two of a: it
/// comes from further away, and is packed in another order.
std::pair<int64_t, int64_t> size_of_part(const TileProduct& p, int64_t threads) {
  const auto share = [](int64_t all, int64_t parts) {
    return ((all + parts - 1) / parts + kTileBlock - 1) / kTileBlock * kTileBlock;
  };
  std::pair<int64_t, int64_t> best;
  for (int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const std::pair size(share(p.rows, down), share(p.columns, threads / down));
    const auto packed = [](const auto& part) { return part.first + 2 * part.second; };
    if (down == 1 || packed(size) < packed(best)) best = size;
  }
  return best;
}

TileFactors tile_factors(const Factors& factors) {
  const auto& [a, b] = factors;
  if (!a.defined()) return {};
  const auto matrix = [](const at::Tensor& x) {
    const bool by_columns = !is_plain(x);
    return TileMatrix{.numbers = x.const_data_ptr(),
                      .stride = x.stride(by_columns ? 1 : 0),
                      .by_columns = by_columns};
  };
  return {.a = matrix(a), .b = matrix(b), .depth = a.size(1)};
}

/// This thread's memory to work in, in a huge page, which it keeps: as that of libraries' products it is in no account of tensors.
void* workspace(int64_t bytes) {
  static thread_local PageBuffer pages;
  if (std::ssize(pages.bytes()) < bytes) {
    pages = PageBuffer();  // before others are taken
    pages = PageBuffer(std::max(bytes, kHugePageBytes));
  }
  return pages.bytes().data();
}

void multiply_tiled(const at::Tensor& out, const Factors& first, const Factors& second,
                    bool accumulate, float factor) {
  const TileProduct product{.factors = {tile_factors(first), tile_factors(second)},
                            .of_float = first.a.scalar_type() == at::kFloat,
                            .out = out.data_ptr(),
                            .into_float = out.scalar_type() == at::kFloat,
                            .rows = out.size(0),
                            .columns = out.size(1),
                            .out_stride = out.stride(0),
                            .factor = factor,
                            .accumulate = accumulate};
  const Observed run("tessera::multiply",
                     {first.a, first.b, second.a, second.b, out, read_too(out, accumulate)});
  const auto size = size_of_part(product, at::in_parallel_region() ? 1 : at::get_num_threads());
  const int64_t height = size.first, width = size.second;
  const int64_t down = (product.rows + height - 1) / height;
  const int64_t parts = down * ((product.columns + width - 1) / width);
  const int64_t bytes = amx_bf16::tile_product_workspace(height, width);
  parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % down * height, column = i / down * width;
      amx_bf16::multiply_part(product,
                              {.first_row = row,
                               .last_row = std::min(row + height, product.rows),
                               .first_column = column,
                               .last_column = std::min(column + width, product.columns)},
                              workspace(bytes));
    }
  });
}
#else
bool is_tiled(const at::Tensor&, const at::Tensor&, const at::Tensor&) { return false; }
void multiply_tiled(const at::Tensor&, const Factors&, const Factors&, bool, float) {}
#endif

/// Measured beside oneDNN: that one is as fast into bfloat16 where the matrix is transposed, as of a layer's forward.
bool is_fastest_tiled(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return is_tiled(out, a, b) &&
         (b.is_contiguous() || out.scalar_type() == at::kFloat || hardly_comes_again(a));
}

}  // namespace

bool multiplies_in_float(const at::Tensor& a) {
  if (!a.device().is_cpu() || a.element_size() != 2) return false;
  return a.scalar_type() == at::kHalf || current_isa() < Isa::avx512_bf16;
}

bool multiplies_bf16_into_float() {
  return cblas_gemm_bf16bf16f32 != nullptr && current_isa() >= Isa::avx512_bf16 &&
         mkl_serv_intel_cpu_true() != 0;
}

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate,
              float factor) {
  if (factor == 1 && is_gemv(out, a)) return multiply_few_rows(out, a, b, accumulate);
  auto target = out;  // the _out functions take a non-const handle
  if (multiplies_in_float(a) && a.numel() > 0) {
    multiply_widened(target, a, b, accumulate, factor);
    return;
  }
  if (is_fastest_tiled(out, a, b)) return multiply_tiled(out, {a, b}, {}, accumulate, factor);
  if (out.scalar_type() == a.scalar_type()) {
    if (goes_into_float(a) && hardly_comes_again(a) && a.numel() > 0 && out.numel() > 0) {
      multiply_through_float(out, a, b, accumulate, factor);
    } else if (accumulate || factor != 1) {
      target.addmm_(a, b, /*beta=*/accumulate ? 1 : 0, factor);
    } else {
      at::mm_out(target, a, b);
    }
    return;
  }
  TORCH_INTERNAL_ASSERT(out.scalar_type() == at::kFloat && out.is_contiguous());
  if (a.is_cuda()) {
    if (accumulate) {
      at::addmm_out(target, target, a, b, at::kFloat, /*beta=*/1, /*alpha=*/factor);
    } else {
      at::mm_out(target, a, b, at::kFloat);
      if (factor != 1) target.mul_(factor);
    }
    return;
  }
  if (goes_into_float(a)) {
    multiply_bf16_into_float(target, a, b, accumulate, factor);
  } else {
    const auto product = at::mm(a, b);
    accumulate ? target.add_(product, factor) : target.copy_(product).mul_(factor);
  }
}

at::Tensor sum_of_products(const Factors& factors, const Factors& more) {
  const auto& [a, b] = factors;
  auto sum = at::empty({a.size(0), b.size(1)}, a.options());
  const auto fits = [type = a.scalar_type()](const at::Tensor& x) {
    return x.scalar_type() == type && is_tile_matrix(x);
  };
  const bool adds_tiled = more.a.defined() && is_tiled(sum, a, b) && fits(more.a) && fits(more.b);
  if (!adds_tiled) {
    multiply(sum, a, b, /*accumulate=*/false);
    return added(sum, more);
  }
  multiply_tiled(sum, factors, more, /*accumulate=*/false, /*factor=*/1);
  return sum;
}

at::Tensor added(const at::Tensor& sum, const Factors& more) {
  if (more.a.defined()) multiply(sum, more.a, more.b, /*accumulate=*/true);
  return sum;
}

at::Tensor multiply_into(const at::Tensor& sink, const at::Tensor& a, const at::Tensor& b,
                         const at::TensorOptions& options, float factor) {
  if (sink.defined()) {
    multiply(sink, a, b, /*accumulate=*/autograd::adds_to(sink), factor);
    return {};
  }
  auto product = at::empty({a.size(0), b.size(1)}, options.requires_grad(false));
  multiply(product, a, b, /*accumulate=*/false, factor);
  return product;
}

}  // namespace tessera::kernels
