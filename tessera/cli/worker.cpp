// tessera-worker: one rank of `tessera train`. A program of its own, so that `tessera` need not
// load LibTorch.
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/text.h"
#include "tessera/cli/worker_program.h"
#include "tessera/config/job_keys.h"
#include "tessera/config/run_config.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/train/assemble.h"
#include "tessera/train/loop.h"
#include "tessera/train/self_test.h"

namespace tessera {
namespace {

/// What LibTorch logs on its own (a store it cannot reach, with a stack trace, ..) is in our one
/// line already.
void quieten_libtorch() {
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
}

int run_rank(const std::string& job, const std::vector<std::string>& arguments) {
  kernels::install_caching_allocator();
  const auto environment = launch::rank_environment().value_or(launch::RankEnvironment{});
  std::vector<config::Override> overrides;
  for (const auto& argument : arguments) overrides.push_back(config::parse_override(argument));
  if (job == cli::kSelfTest) {
    return train::self_test(config::load_run_config("", overrides).config.parallel, environment);
  }
  const auto loaded = config::load_run_config(job, overrides);
  auto run = train::assemble(loaded.config, environment);
  return train::train_loop(run, environment);
}

int report(const std::string& message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "tessera: %s\n", printable(message, LineBreaks::kept).c_str());
  return exit_code;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc < 2)
    return report("tessera-worker JOB.yaml [section.key=value ...]: started by `tessera train`",
                  kUserErrorExit);
  const bool trace = std::getenv("TESSERA_TRACE") != nullptr;
  try {
    quieten_libtorch();
    watch_mapped_files(WhenCut::note);
    return run_rank(argv[1], {argv + 2, argv + argc});
  } catch (const UserError& error) {
    return report(config::with_job_keys(error.what()), kUserErrorExit);
  } catch (const c10::ValueError& error) {
    return report(trace ? error.what() : config::with_job_keys(error.what_without_backtrace()),
                  kUserErrorExit);
  } catch (const c10::Error& error) {
    return report(trace ? error.what() : error.what_without_backtrace(), kFailureExit);
  } catch (const std::exception& error) {
    return report(error.what(), kFailureExit);
  }
}
