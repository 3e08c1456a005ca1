#include "tessera/comm/run_program.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/path_error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

/// What LibTorch logs on its own (a store it cannot reach, with a stack trace, ..) is in our one
/// line already.
void quieten_libtorch() {
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
}

int tell(const std::string& message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "tessera: %s\n", printable(message, LineBreaks::kept).c_str());
  return exit_code;
}

/// CUDA tells late, and LibTorch with lines for who develops kernels.
std::string text_of(const c10::AcceleratorError& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n')) +
         "; the GPU computes nothing more in this process: go on from a checkpoint (its driver's "
         "log may say more; with CUDA_LAUNCH_BLOCKING=1 and TESSERA_TRACE=1 this says where)";
}

}  // namespace

int run_program(const std::function<int()>& program, const ProgramOptions& options) {
  open_standard_files();
  const bool trace = std::getenv("TESSERA_TRACE") != nullptr;
  const auto in_users_words = [&](const std::string& message) {
    return options.in_users_words ? options.in_users_words(message) : message;
  };
  try {
    quieten_libtorch();
    ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of who writes it
    watch_mapped_files(WhenCut::note);
    return with_path_errors(program);
  } catch (const UserError& error) {
    return tell(in_users_words(error.what()), kUserErrorExit);
  } catch (const c10::ValueError& error) {
    return tell(trace ? error.what() : in_users_words(error.what_without_backtrace()),
                kUserErrorExit);
  } catch (const c10::AcceleratorError& error) {
    return tell(trace ? error.what() : text_of(error), kFailureExit);
  } catch (const c10::Error& error) {
    return tell(trace ? error.what() : error.what_without_backtrace(), kFailureExit);
  } catch (const std::exception& error) {
    return tell(error.what(), kFailureExit);
  }
}

}  // namespace tessera
