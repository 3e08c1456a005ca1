// tessera-worker: one rank of `tessera train`. A program of its own, so that `tessera` need not
// load LibTorch.
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cli/option_words.h"
#include "tessera/cli/worker_program.h"
#include "tessera/comm/run_program.h"
#include "tessera/config/job_keys.h"
#include "tessera/config/run_config.h"
#include "tessera/inference/answer.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/train/assemble.h"
#include "tessera/train/loop.h"
#include "tessera/train/out_of_memory.h"
#include "tessera/train/self_test.h"

namespace tessera {
namespace {

/// `arguments`: kAnswer and a request; or kSelfTest or nothing, and the configuration that `tessera`
/// checked.
int run_rank(const std::vector<std::string>& arguments) {
  kernels::install_caching_allocator();
  const auto environment = launch::rank_environment().value_or(launch::RankEnvironment{});
  if (arguments.front() == cli::kAnswer)
    return inference::answer(inference::read_request(arguments.back()), environment);
  const auto config = config::load_run_config(arguments.back(), {}).config;
  if (arguments.front() == cli::kSelfTest) return train::self_test(config.parallel, environment);
  if (config.checkpoint.saves()) launch::end_on_stop_signal(environment.rank == 0);
  int status = 0;
  train::within_memory(config, environment, [&] {
    auto run = train::assemble(config, environment);
    status = train::train_loop(run, environment);
  });
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc < 2) {
    std::fputs("tessera: tessera-worker: is started by `tessera train`; use that\n", stderr);
    return kUserErrorExit;
  }
  const bool has_job = std::string_view(argv[1]) != cli::kAnswer;
  return run_program(
      [&] {
        return run_rank({argv + 1, argv + argc});
      },
      {.in_users_words = has_job ? config::with_job_keys : cli::with_command_options});
}
