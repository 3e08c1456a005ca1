// What the .cu files define: each function launches one operator's kernels on a stream and returns
// at once. Without LibTorch, which nvcc would take minutes to read.
#pragma once

#include "tessera/kernels/fused_args.h"

#if !defined(TESSERA_GPU_NAMESPACE)
#define TESSERA_GPU_NAMESPACE gpu  // another where tests run the same sources on the host
#endif

namespace tessera::kernels::TESSERA_GPU_NAMESPACE {

using Stream = void*;  ///< cudaStream_t, hipStream_t

// --- norms.cu, norms_grad.cu

void rms_norm(const RmsNormArgs& args, Stream stream);
void layer_norm(const LayerNormArgs& args, Stream stream);

/// Rows that are summed by one block, and how many such groups there are: a function of both numbers alone.
struct RowGroups {
  int64_t rows_each, groups;
};
RowGroups groups_of(int64_t rows, int64_t dim);       ///< of sum_of_rows
RowGroups norm_groups_of(int64_t rows, int64_t dim);  ///< of norms' gradients

/// `partial`: float [groups, dim] of scratch; `sums`: float [dim], the weight's gradient.
void rms_norm_grad(const RmsNormGradArgs& args, float* partial, float* sums, Stream stream);
/// `partial`: float [groups, 2 dim]; `sums`: float [2, dim], of weight and bias.
void layer_norm_grad(const LayerNormGradArgs& args, float* partial, float* sums, Stream stream);
/// x [rows, dim] -> sums [dim]; `partial`: float [groups, dim].
void sum_of_rows(const void* x, Element type, int64_t rows, int64_t dim, float* partial,
                 float* sums, Stream stream);

// --- elementwise.cu

void rotary(const RotaryArgs& args, Stream stream);
void swiglu(const SwigluArgs& args, Stream stream);
void swiglu_grad(const SwigluGradArgs& args, Stream stream);
void gelu_tanh(const GeluArgs& args, Stream stream);
void add(const AddArgs& args, Stream stream);

// --- cross_entropy.cu

void cross_entropy(const CrossEntropyArgs& args, Stream stream);

// --- fp8.cu

void fp8_cast(const Fp8CastArgs& args, Stream stream);

// --- flat.cu

void adamw(const AdamWArgs& args, Stream stream);
void round_stochastically(const RoundArgs& args, Stream stream);
void drop(const DropArgs& args, Stream stream);

/// How many doubles of scratch sum_of_squares takes, for `count` values.
int64_t partial_squares(int64_t count);
void sum_of_squares(const void* values, Element type, int64_t count, double* partial, double* sum,
                    Stream stream);

}  // namespace tessera::kernels::TESSERA_GPU_NAMESPACE
