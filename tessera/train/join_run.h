// How a rank becomes one of a run: its threads, its place on the mesh, the network.
#pragma once

#include "tessera/config/run_config.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/mesh/mesh.h"

namespace tessera::train {

/// The number of threads of this rank.
void set_threads(const config::ParallelSection& parallel,
                 const launch::RankEnvironment& environment);

/// Joins the run. UserError: axes that do not fit its ranks, a backend that is not here.
mesh::DeviceMesh make_mesh(const config::ParallelSection& parallel,
                           const launch::RankEnvironment& environment);

}  // namespace tessera::train
