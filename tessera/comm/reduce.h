// The arithmetic of reductions: several ranks' buffers into one.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace tessera::comm {

/// `avg` is the sum multiplied by 1 / ranks, never a backend's own average (Gloo's has summed in
/// some versions). `max` and `min` are NaN where one rank's element is.
enum class ReduceOp { sum, avg, max, min };

const char* name_of(ReduceOp op);

/// out[i] = op over r of parts[r][i], i < count, taken in the order of ranks: the same bits whoever
/// computes it. bf16 and fp16 add up in fp32 and are rounded once. `out` may be one of the parts.
/// One pass over memory. Types: fp32, fp64, bf16, fp16, int64, int32, uint8. Throws c10::ValueError
/// for other types and for avg of integers.
void reduce_parts(ReduceOp op, at::ScalarType dtype, std::span<const void* const> parts, void* out,
                  int64_t count);

/// Throws what reduce_parts would throw for these arguments.
void check_reducible(ReduceOp op, at::ScalarType dtype);

/// data[i] *= factor, for the types that can be averaged.
void scale(at::ScalarType dtype, void* data, int64_t count, double factor);

}  // namespace tessera::comm
