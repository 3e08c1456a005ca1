// What a stretch of a program spent its time on, by LibTorch's profiler.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace tessera {

struct ProfileOptions {
  bool record_shapes = false, profile_memory = false, with_flops = false;
  /// Where each process writes profile_<rank>.json at the end, for chrome://tracing or Perfetto;
  /// empty: nowhere.
  std::filesystem::path output_trace_dir;
};

/// All calls of one operator.
struct ProfiledOperator {
  std::string name;
  int64_t count = 0;
  double self_cpu_time_total = 0, cpu_time_total = 0;  ///< microseconds; self: without those inside
};

/// Records from its making to stop(). One at a time in a process. Costs 1 to 2 us per operator.
class Profile {
 public:
  Profile(const ProfileOptions& options, int rank);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// Ends the recording, and writes the trace; later calls do nothing. SystemError: no space.
  void stop();

  /// The operators, those with the largest self_cpu_time_total first; stops.
  std::vector<ProfiledOperator> key_averages();
  /// key_averages() as text, with the columns of torch.profiler; below 0: all rows.
  std::string table(int64_t row_limit = 10);

 private:
  ProfileOptions options_;
  int rank_;
  bool running_ = true;
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result_;
};

}  // namespace tessera
