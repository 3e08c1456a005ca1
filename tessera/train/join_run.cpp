#include "tessera/train/join_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/device.h"
#include "tessera/config/job_keys.h"

namespace tessera::train {

void set_threads(const config::ParallelSection& parallel,
                 const launch::RankEnvironment& environment) {
  int64_t threads = parallel.threads_per_rank;
  if (threads == 0 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    threads =
        std::max<int64_t>(1, std::thread::hardware_concurrency() / environment.local_world_size);
  }
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

mesh::DeviceMesh make_mesh(const config::ParallelSection& parallel,
                           const launch::RankEnvironment& environment) {
  const auto choice =
      comm::choose_device(parallel.backend, environment.local_rank, environment.local_world_size);
  if (environment.rank == 0 && !choice.note.empty()) {
    fmt::print("{}\n", config::with_job_keys(choice.note));
  }
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(parallel.timeout_seconds * 1000));
  return mesh::DeviceMesh(config::fitting_mesh(parallel, environment.world_size),
                          {.rank = environment.rank,
                           .world_size = environment.world_size,
                           .master_addr = environment.master_addr,
                           .master_port = environment.master_port,
                           .listen_fd = environment.listen_fd,
                           .served = environment.agent_store,
                           .one_machine = environment.local_world_size == environment.world_size,
                           .interface = parallel.interface,
                           .secret = environment.secret,
                           .timeout = timeout},
                          /*transport=*/{}, choice.device);
}

}  // namespace tessera::train
