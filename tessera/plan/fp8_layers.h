// Which linear layers have numbers of 8 bits, and what their products gain by it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/fp8.h"
#include "tessera/config/run_config.h"
#include "tessera/models/shape.h"
#include "tessera/plan/rank_part.h"

namespace tessera::plan {

/// A linear layer of a block, as the rank with the most of it has it.
struct Fp8Layer {
  std::string path;  ///< "model.layers.0.mlp.up_proj"
  int64_t block = 0;
  int64_t out = 0, in = 0;  ///< of the rank's part of its weight
  int64_t rows = 0;         ///< that it multiplies in a micro-batch, of an expert the mean
  double gain = 0;          ///< fp8_gain; 0: precision.matmul is as_compute
  bool kept = false;        ///< in `compute`, by precision.fp8_keep
};

/// All linear layers of the model's blocks; none if the run has no numbers of 8 bits in them. `num_blocks`:
/// of the whole model. UserError: an entry of fp8_keep matches none; `auto` leaves none.
std::vector<Fp8Layer> fp8_layers(const config::RunConfig& config, int64_t num_blocks,
                                 const RankPart& part);

/// Names of the weights among them that are kept or gathered in 8 bits.
std::set<std::string> weights_in_fp8(const config::RunConfig& config, int64_t num_blocks,
                                     const RankPart& part);

/// The time of a layer's three products of bf16 numbers over that of products by `matmul`, rounding
/// included, on a device with 8-bit units: above 1 something is gained. A roofline of an H100 SXM: products
/// at what cuBLAS reaches of its data sheet (989 and 1,979 TFLOP/s: 78 % and 64 %; by row 55 %), and each
/// operand read and written in both orders by as many passes as its scales need, at 92 % of 3.35 TB/s. Of torchao's
/// published measurements (torchao/float8/README.md, tensorwise) it gives 1024 x 2048 x 1024 0.82 for 0.80
/// and 4096 x 8192 x 16384 1.40 for 1.39.
double fp8_gain(Matmul matmul, int64_t out, int64_t in, int64_t rows);

/// The layers as lines of a table, those of all blocks that are alike in one.
std::vector<std::string> fp8_table(const std::vector<Fp8Layer>& layers);

}  // namespace tessera::plan
