// Batch norm over the batches of all data-parallel ranks.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "tessera/mesh/mesh.h"

namespace tessera::parallel {

/// Makes every batch norm in `model` take its statistics over all data ranks of the mesh
/// (nn/batch_norm.h): one all_reduce in forward and one in backward of each, inside the call and on
/// the caller's thread.
///
/// - tessera::nn::BatchNorm: attached to, wherever it stands.
/// - torch::nn::BatchNorm1d, 2d, 3d in a torch::nn::Sequential: its place is taken by a
///   tessera::nn::BatchNorm with the same tensors, options and names.
/// - The same held elsewhere: ValueError names it, since its holder calls it directly; make it a
///   tessera::nn::BatchNorm. Nothing is changed then.
///
/// Returns how many were converted; ValueError if `model` has none. Not collective. Call it before
/// replicate or fully_shard.
int64_t convert_sync_batchnorm(torch::nn::Module& model, const mesh::DeviceMesh& mesh);

/// The same over any ranks. `axis` must be a channel of its own (mesh::AxisOptions): data
/// parallelism's collectives run meanwhile, and relative to these their order differs from rank to
/// rank.
int64_t convert_sync_batchnorm(torch::nn::Module& model, const mesh::Axis& axis);

}  // namespace tessera::parallel

namespace tessera {
using parallel::convert_sync_batchnorm;
}  // namespace tessera
