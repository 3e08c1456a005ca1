// The program whose processes are the ranks of `tessera train` and `tessera test`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

/// The folder that has this program in bin/.
std::filesystem::path install_prefix();

/// `job`, or the job file of the recipe of that name that was installed with this program.
std::string job_file(const std::string& job);

/// tessera-worker, which stands beside tessera. Where that was installed without a LibTorch of its
/// own, this process's LD_LIBRARY_PATH names one (libtorch_of_user.h), for those it starts.
std::string worker_path();

/// Stands before the configuration: check the set-up instead of training.
inline constexpr const char* kSelfTest = "--self-test";

/// Stands before an inference::Request: answer it instead of training.
inline constexpr const char* kAnswer = "--answer";

/// A file in memory with `content` (a configuration, checked and complete; a request): what the ranks
/// read that this process starts or becomes. Returns its path, which is good for them alone.
std::string file_for_ranks(std::string_view content);

/// This process goes on as that program, with its arguments. SystemError if it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& command);

/// How many ranks this machine starts: as many as asked for, or (-1) one per two cores.
int num_ranks(int64_t asked);

}  // namespace tessera::cli
