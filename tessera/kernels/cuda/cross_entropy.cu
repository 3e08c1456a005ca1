// Softmax, loss and gradient of rows of logits: a block for each row, which it reads once for the
// largest logit and the sum together, and once more to write the gradient.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kLossThreads = 1024;

/// The sum of exp(x - largest) over what has been seen. `largest` starts at -inf.
struct SoftmaxSum {
  float largest, sum;

  /// `largest` as what to subtract: of -inf alone nothing, so that exp gives 0 and not NaN.
  static __device__ float shift(float largest) { return largest == -INFINITY ? 0.0f : largest; }

  /// The sum as if `top`, which is not less, had been the largest.
  __device__ float sum_beside(float top) const { return sum * expf(largest - shift(top)); }

  template <int N>
  __device__ void add(const Floats<N>& v) {
    float top = largest;
    for (int k = 0; k < N; ++k) top = fmaxf(top, v[k]);
    sum = sum_beside(top);
    for (int k = 0; k < N; ++k) sum += expf(v[k] - shift(top));
    largest = top;
  }
};

template <typename T, int N>
__global__ void cross_entropy_kernel(CrossEntropyArgs args) {
  const int64_t row = blockIdx.x, vocab = args.vocab, target = args.targets[row];
  const int64_t step = static_cast<int64_t>(blockDim.x) * N;
  const float* logits = args.logits + row * vocab;
  T* gradient = args.gradient == nullptr ? nullptr : static_cast<T*>(args.gradient) + row * vocab;
  if (target == args.ignore_index) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    for (int64_t i = threadIdx.x * N; gradient != nullptr && i < vocab; i += step) {
      store(gradient + i, Floats<N>{});
    }
    return;
  }
  // Before the gradient may take its place. Nobody has looked at targets on a GPU: one that there is not gives no number.
  const float of_target = target >= 0 && target < vocab ? logits[target] : NAN;
  SoftmaxSum own = {-INFINITY, 0};
  for (int64_t i = threadIdx.x * N; i < vocab; i += step) own.add(load<N>(logits + i));
  const float top = over_block<Max>(own.largest);
  const float total = sum_over_block(own.sum_beside(top));
  if (threadIdx.x == 0) {
    args.losses[row] = log(static_cast<double>(total)) + top - static_cast<double>(of_target);
  }
  if (gradient == nullptr) return;
  const float scale = args.scales[row], factor = scale / total;
  const auto at_target = static_cast<float>(
      (static_cast<double>(expf(of_target - top)) / static_cast<double>(total) - 1.0) *
      static_cast<double>(scale));
  for (int64_t i = threadIdx.x * N; i < vocab; i += step) {
    Floats<N> v = load<N>(logits + i);
    for (int k = 0; k < N; ++k) v[k] = i + k == target ? at_target : expf(v[k] - top) * factor;
    store(gradient + i, v);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  const bool wide = args.vocab % kVector == 0 && aligned(args.logits, args.gradient);
  with_type(args.type, [&](auto element) {
    with_width(wide, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      launch(cross_entropy_kernel<decltype(element), kWidth>, args.rows,
             threads_for(args.vocab / kWidth, kLossThreads), stream, args);
    });
  });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
