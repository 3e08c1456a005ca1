// What this machine has, as its kernel tells. No library of a GPU is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// Extensions of x86-64 that decide how fast ranks on CPUs are, as /proc/cpuinfo spells them.
inline constexpr const char* kBf16Instructions = "avx512_bf16";
inline constexpr std::array kIsaFlags = {"avx2", "avx512f", kBf16Instructions, "avx512_fp16",
                                         "amx_bf16"};

struct Machine {
  std::string cpu;                ///< "Intel(R) Xeon(R) Processor @ 2.50GHz"; "": it does not say
  std::vector<std::string> isa;   ///< those of kIsaFlags that it has
  int64_t num_cores = 1;          ///< that this process may run on
  int64_t memory_bytes = 0;       ///< or less, where a control group (container, Slurm) has a limit
  int64_t available_bytes = 0;    ///< of them, without swapping
  std::vector<std::string> gpus;  ///< "NVIDIA H200", ..: those in /dev
};

/// `root` stands for / in tests.
Machine this_machine(const std::filesystem::path& root = "/");

}  // namespace tessera
