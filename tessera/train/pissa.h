// What PiSSA begins with: an adapter of the largest singular values of each matrix, which are taken out of the base (Meng et
// al., PiSSA, NeurIPS 2024).
#pragma once

#include <cstdint>

#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/mesh/mesh.h"

namespace tessera::train {

/// A = (S / scale)^1/2 V and B = U (S / scale)^1/2 of the `rank` largest singular values of each linear
/// module's weight W = U S V in `base`, as something that subtracts: W - scale B A is what stays. Embeddings
/// have none, as in PEFT. With spec.pissa_iterations by that many subspace iterations (Halko et al.
/// 2011, algorithm 4.4) from numbers of `seed`. Collective over `axis`, whose ranks share the modules and
/// exchange what they found: all have the same, to the bit. Cost without iterations: O(out in
/// min(out, in)) for each module; memory: one weight and its vectors. UserError: weights that are not
/// finite.
checkpoint::AdapterPart pissa_start(const models::AdapterSpec& spec,
                                    const models::ModelShape& shape, int64_t seed,
                                    const checkpoint::TensorSource& base, const mesh::Axis& axis);

}  // namespace tessera::train
