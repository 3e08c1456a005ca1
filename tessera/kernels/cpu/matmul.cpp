#include "tessera/kernels/cpu/matmul.h"

#include <ATen/ATen.h>

#include "tessera/kernels/cpu/isa.h"

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

}  // namespace

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulate) {
  auto target = out;  // the _out functions take a non-const handle
  if (out.scalar_type() == a.scalar_type()) {
    if (accumulate) {
      target.addmm_(a, b);
    } else {
      at::mm_out(target, a, b);
    }
    return;
  }
  TORCH_INTERNAL_ASSERT(out.scalar_type() == at::kFloat && out.is_contiguous());
  const bool exact = cblas_gemm_bf16bf16f32 != nullptr && a.device().is_cpu() &&
                     a.scalar_type() == at::kBFloat16 && detected_isa() == Isa::avx512_bf16 &&
                     mkl_serv_intel_cpu_true() != 0;
  if (!exact) {
    const auto product = at::mm(a, b);
    accumulate ? target.add_(product) : target.copy_(product);
    return;
  }
  const bool plain_a = a.is_contiguous();
  const bool plain_b = b.is_contiguous();
  cblas_gemm_bf16bf16f32(
      kRowMajor, plain_a ? kPlain : kTransposed, plain_b ? kPlain : kTransposed,
      static_cast<int>(a.size(0)), static_cast<int>(b.size(1)), static_cast<int>(a.size(1)), 1.0f,
      a.const_data_ptr(), static_cast<int>(plain_a ? a.size(1) : a.size(0)), b.const_data_ptr(),
      static_cast<int>(plain_b ? b.size(1) : b.size(0)), accumulate ? 1.0f : 0.0f,
      target.data_ptr<float>(), static_cast<int>(out.size(1)));
}

}  // namespace tessera::kernels
