// Time since the start and memory of this process, read from Linux's /proc.
#pragma once

#include <cstdint>

namespace tessera::report {

/// Seconds since the machine booted (CLOCK_BOOTTIME): the clock in which process starts are
/// recorded, equal in every process of a machine. The launcher writes it into the environment
/// variable `kLaunchTimeVariable`.
double boot_seconds();

inline constexpr const char* kLaunchTimeVariable = "TESSERA_LAUNCH_TIME";

/// Seconds since this process was created (by fork; a later exec does not reset it), to 10 ms.
/// Throws SystemError if /proc is not mounted.
double seconds_since_process_start();

/// Seconds since the user's command: since TESSERA_LAUNCH_TIME, or since the start of this process
/// if the variable is unset. Throws UserError if the variable holds anything but a time of this
/// machine that has passed.
double seconds_since_launch();

struct ProcessMemory {
  int64_t current_bytes =
      0;                   ///< resident now (VmRSS), mapped pages of libraries and files included
  int64_t peak_bytes = 0;  ///< highest resident size since exec (VmHWM)
};

/// Memory of this one process: a rank's number is its own, the sum over ranks counts shared pages
/// repeatedly. Cost: one small read, some 20 us. Throws SystemError if /proc is not mounted.
ProcessMemory process_memory();

}  // namespace tessera::report
