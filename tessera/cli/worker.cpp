// tessera-worker: one rank of `tessera train`. A program of its own, so that `tessera` need not
// load LibTorch.
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/text.h"
#include "tessera/cli/option_words.h"
#include "tessera/cli/worker_program.h"
#include "tessera/config/job_keys.h"
#include "tessera/config/run_config.h"
#include "tessera/inference/answer.h"
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

/// `arguments`: kAnswer and a request; or kSelfTest or nothing, and the configuration that `tessera`
/// checked.
int run_rank(const std::vector<std::string>& arguments) {
  kernels::install_caching_allocator();
  const auto environment = launch::rank_environment().value_or(launch::RankEnvironment{});
  if (arguments.front() == cli::kAnswer)
    return inference::answer(inference::read_request(arguments.back()), environment);
  const auto config = config::load_run_config(arguments.back(), {}).config;
  if (arguments.front() == cli::kSelfTest) return train::self_test(config.parallel, environment);
  auto run = train::assemble(config, environment);
  return train::train_loop(run, environment);
}

int tell(const std::string& message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "tessera: %s\n", printable(message, LineBreaks::kept).c_str());
  return exit_code;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc < 2)
    return tell("tessera-worker: is started by `tessera train`; use that", kUserErrorExit);
  const bool trace = std::getenv("TESSERA_TRACE") != nullptr;
  const bool has_job = std::string_view(argv[1]) != cli::kAnswer;
  const auto in_users_words = [&](const std::string& message) {
    return has_job ? config::with_job_keys(message) : cli::with_command_options(message);
  };
  try {
    quieten_libtorch();
    watch_mapped_files(WhenCut::note);
    return run_rank({argv + 1, argv + argc});
  } catch (const UserError& error) {
    return tell(in_users_words(error.what()), kUserErrorExit);
  } catch (const c10::ValueError& error) {
    return tell(trace ? error.what() : in_users_words(error.what_without_backtrace()),
                kUserErrorExit);
  } catch (const c10::Error& error) {
    return tell(trace ? error.what() : error.what_without_backtrace(), kFailureExit);
  } catch (const std::exception& error) {
    return tell(error.what(), kFailureExit);
  }
}
