// Attention over tiles of kBlock queries and kBlock keys (Dao, FlashAttention-2, 2023, algorithms 1
// and 2). Every product is a tile's rows (broadcast step by step) times rows of vectors. The tiles
// hold base-2 logarithms and exp is 2^x.
//
// T is the tensors' element, F what is multiplied (attention_tiles.h). With bfloat16 factors the
// weights and their gradients are rounded to bfloat16 before they are multiplied; scores, sums, the
// running maximum and the log-sum-exp are floats.
#pragma once

#include "tessera/kernels/cpu/attention_backward.h"
#include "tessera/kernels/cpu/attention_forward.h"
#include "tessera/kernels/cpu/attention_one_query.h"

namespace tessera::kernels::TESSERA_ISA_NAMESPACE {
namespace {

int64_t forward_workspace(const AttentionProblem& p) {
  const auto count = [&](auto buffers) { return place(p, nullptr, buffers); };
  if (p.num_queries == 1) return count(OneQueryBuffers{});
  return p.bfloat16 ? count(ForwardBuffers<Factor<Bf16>>{}) : count(ForwardBuffers<float>{});
}
int64_t backward_workspace(const AttentionProblem& p) {
  const auto count = [&](auto buffers) { return place(p, nullptr, buffers); };
  return p.bfloat16 ? count(BackwardBuffers<Factor<Bf16>>{}) : count(BackwardBuffers<float>{});
}
void forward(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  if (p.num_queries == 1) {
    (p.bfloat16 ? forward_one_query<Bf16> : forward_one_query<float>)(p, begin, end, workspace);
  } else {
    (p.bfloat16 ? forward_range<Bf16> : forward_range<float>)(p, begin, end, workspace);
  }
}
void backward(const AttentionProblem& p, int64_t begin, int64_t end, float* workspace) {
  (p.bfloat16 ? backward_range<Bf16> : backward_range<float>)(p, begin, end, workspace);
}

}  // namespace

const AttentionTable attention_table = {forward_workspace, forward, backward_workspace, backward};

}  // namespace tessera::kernels::TESSERA_ISA_NAMESPACE
