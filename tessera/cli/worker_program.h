// The program whose processes are the ranks of `tessera train` and `tessera test`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera::cli {

/// The folder that has this program in bin/.
std::filesystem::path install_prefix();

/// tessera-worker, which stands beside tessera. Where that was installed without a LibTorch of its
/// own, this process's LD_LIBRARY_PATH names one (libtorch_of_user.h), for those it starts.
std::string worker_path();

/// Stands before the configuration: check the set-up instead of training.
inline constexpr const char* kSelfTest = "--self-test";

/// A file in memory with `config`, checked and complete: what the ranks read that this process
/// starts or becomes. Returns its path, which is good for them alone.
std::string config_for_ranks(const config::RunConfig& config);

/// This process goes on as that program, with its arguments. SystemError if it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& command);

/// How many ranks this machine starts: as many as asked for, or (-1) one per two cores.
int num_ranks(int64_t asked);

}  // namespace tessera::cli
