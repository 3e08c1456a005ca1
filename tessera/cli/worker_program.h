// The program whose processes are the ranks of `tessera train` and `tessera test`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

/// tessera-worker, which stands beside tessera.
std::string worker_path();

/// Stands before a configuration's overrides: check the set-up instead of training.
inline constexpr const char* kSelfTest = "--self-test";

/// This process goes on as that program, with its arguments. SystemError if it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& command);

/// How many ranks this machine starts: as many as asked for, or (-1) one per two cores.
int num_ranks(int64_t asked);

}  // namespace tessera::cli
