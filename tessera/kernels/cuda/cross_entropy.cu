// Softmax, loss and gradient of rows of logits: a block for each row, which it reads for the largest logit and the sum
// together, and again to write the gradient. It keeps the start of the row in shared memory between the two; the rest it
// reads again from its end, so that what was read last is still in the cache.
#include "tessera/kernels/cuda/gpu.h"

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kLossThreads = 1024;
constexpr int kAtOnce = 16;     // logits of a thread that are on their way together
constexpr int kWideLogits = 4;  // 16 bytes
constexpr int kMostKept = 3;    // chunks: more would leave too little of an SM's memory for loads on their way

/// e^x for x <= 0: one multiplication, and the device's own power of two.
__device__ inline float exp_of(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  return expf(x);
#endif
}

/// The sum of exp(x - largest) over what has been seen. `largest` starts at -inf.
struct SoftmaxSum {
  float largest, sum;

  /// `largest` as what to subtract: of -inf alone nothing, so that exp gives 0 and not NaN.
  static __device__ float shift(float largest) { return largest == -INFINITY ? 0.0f : largest; }

  /// The sum as if `top`, which is not less, had been the largest.
  __device__ float sum_beside(float top) const { return sum * exp_of(largest - shift(top)); }

  __device__ void add(const float (&v)[kAtOnce]) {
    float top = largest;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) top = fmaxf(top, v[k]);
    const float by = shift(top);
    sum = sum_beside(top);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += exp_of(v[k] - by);
    largest = top;
  }
};

template <typename T, int N>
struct alignas(N * sizeof(T)) Lump {
  T v[N];
};

/// A row in chunks of kAtOnce logits a thread: kAtOnce / N lumps, each as many behind the one before as there are threads.
template <typename T, int N>
struct LossRow {
  static constexpr int kLumps = kAtOnce / N;
  const Lump<float, N>* logits;
  Lump<T, N>* gradient;
  Lump<float, N>* memory;  ///< of the block: `kept` chunks, of which each thread uses what it read
  int lumps, kept;

  __device__ int place(int chunk, int part) const {
    return (chunk * kLumps + part) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }

  /// -inf beyond the end of the row.
  __device__ void read(int chunk, float (&v)[kAtOnce]) const {
#pragma unroll
    for (int part = 0; part < kLumps; ++part) {
      const int at = place(chunk, part);
      Lump<float, N> own;
      for (int k = 0; k < N; ++k) own.v[k] = -INFINITY;
      if (at < lumps) own = logits[at];
      for (int k = 0; k < N; ++k) v[part * N + k] = own.v[k];
    }
  }
  __device__ void keep(int chunk, const float (&v)[kAtOnce]) const {
#pragma unroll
    for (int part = 0; part < kLumps; ++part) {
      Lump<float, N> own;
      for (int k = 0; k < N; ++k) own.v[k] = v[part * N + k];
      memory[place(chunk, part)] = own;
    }
  }
  __device__ void read_again(int chunk, float (&v)[kAtOnce]) const {
#pragma unroll
    for (int part = 0; part < kLumps; ++part) {
      const int at = place(chunk, part);
      Lump<float, N> own = {};
      if (chunk < kept) {
        own = memory[at];
      } else if (at < lumps) {
        own = logits[at];
      }
      for (int k = 0; k < N; ++k) v[part * N + k] = own.v[k];
    }
  }
  /// `at_target` in place of the target's.
  __device__ void write(int chunk, const float (&v)[kAtOnce], int target, float at_target) const {
#pragma unroll
    for (int part = 0; part < kLumps; ++part) {
      const int at = place(chunk, part);
      if (at >= lumps) continue;
      Lump<T, N> own;
      for (int k = 0; k < N; ++k) from_float(v[part * N + k], own.v[k]);
      if (target / N == at) {
        for (int k = 0; k < N; ++k) {
          if (target % N == k) from_float(at_target, own.v[k]);
        }
      }
      gradient[at] = own;
    }
  }
};

template <typename T, int N>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_kernel(CrossEntropyArgs args, int kept) {
  const int64_t row = blockIdx.x, vocab = args.vocab, target = args.targets[row];
  const float* logits = args.logits + row * vocab;
  T* gradient = args.gradient == nullptr ? nullptr : static_cast<T*>(args.gradient) + row * vocab;
  const LossRow<T, N> own = {reinterpret_cast<const Lump<float, N>*>(logits),
                             reinterpret_cast<Lump<T, N>*>(gradient),
                             static_cast<Lump<float, N>*>(shared_memory()),
                             static_cast<int>(vocab / N), kept};
  const int each = own.kLumps * static_cast<int>(blockDim.x);
  const int chunks = (own.lumps + each - 1) / each;
  float v[kAtOnce] = {};
  if (target == args.ignore_index) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    for (int c = 0; gradient != nullptr && c < chunks; ++c) own.write(c, v, -N, 0);
    return;
  }
  // Before the gradient may take its place. Nobody has looked at targets on a GPU: one that there is not gives no number.
  const bool there = target >= 0 && target < vocab;
  const float of_target = there ? logits[target] : NAN;
  SoftmaxSum seen = {-INFINITY, 0};
  for (int c = 0; c < chunks; ++c) {
    own.read(c, v);
    seen.add(v);
    if (c < kept) own.keep(c, v);
  }
  const float top = over_block<Max>(seen.largest);
  const float total = sum_over_block(seen.sum_beside(top));
  if (threadIdx.x == 0) {
    args.losses[row] = log(static_cast<double>(total)) + top - static_cast<double>(of_target);
  }
  if (gradient == nullptr) return;
  const float scale = args.scales[row], factor = scale / total;
  const auto at_target = static_cast<float>(
      (static_cast<double>(exp_of(of_target - top)) / static_cast<double>(total) - 1.0) *
      static_cast<double>(scale));
  for (int c = chunks - 1; c >= 0; --c) {
    if (c < chunks - 1) own.read_again(c, v);  // the last one is still there
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) v[k] = exp_of(v[k] - top) * factor;
    own.write(c, v, there ? static_cast<int>(target) : -N, at_target);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  const bool wide = args.vocab % kWideLogits == 0 && aligned(args.logits, args.gradient);
  with_type(args.type, [&](auto element) {
    const auto start = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const auto kernel = cross_entropy_kernel<decltype(element), kWidth>;
      const int threads = threads_for(args.vocab / kWidth, kLossThreads);
      const int chunk_bytes = threads * kAtOnce * static_cast<int>(sizeof(float));
      const int64_t chunks = ceil_div(args.vocab, int64_t{threads} * kAtOnce);
      int kept = static_cast<int>(chunks < kMostKept ? chunks : kMostKept);
      if (args.gradient == nullptr) kept = 0;  // nothing is read again
      while (kept > 0 && !can_share(kernel, kept * chunk_bytes)) --kept;
      launch_sharing(kept * chunk_bytes, kernel, args.rows, threads, stream, args, kept);
    };
    wide ? start(Width<kWideLogits>{}) : start(Width<1>{});
  });
}

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
