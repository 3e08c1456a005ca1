// tessera_rank_probe: prints, on one line, which rank it was started as. For trying out launchers
// and clusters.
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/launch/rank_environment.h"

int main() {
  try {
    const auto found = tessera::launch::rank_environment();
    if (!found) {
      fmt::print("no ranks: started as an ordinary program\n");
      return 0;
    }
    fmt::print("rank {} of {}, local {} of {}, node {}, master {}:{}, by {}\n", found->rank,
               found->world_size, found->local_rank, found->local_world_size, found->node_rank,
               found->master_addr, found->master_port, found->source);
    return 0;
  } catch (const tessera::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return tessera::kUserErrorExit;
  }
}
