// Who takes part in the benchmark, and one training run of each.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace tessera::bench {

/// A script of PyTorch's side, started by torchrun. It prints a JSON object per line, the last one
/// with "event": "summary", or one with "event": "unsupported".
struct PeerScript {
  std::string file;  ///< in the folder of the peers, or the whole path
  std::string arguments;
  std::vector<std::string> environment;  ///< NAME=value
  std::vector<std::string> packages;     ///< Python's, that it imports
};

/// A run of `tessera train`.
struct OurRun {
  std::string placement;      ///< parallel.placement
  std::string model_axes;     ///< further keys of parallel: what divides the model
  bool vendor_check = false;  ///< MKL's own choice of instructions (TESSERA_MKL_VENDOR_CHECK=1)
};

struct Contestant {
  std::string name;
  std::string baseline;  ///< contestant by whose figures its own are divided; "": none
  std::variant<PeerScript, OurRun> what;
  int num_ranks = 0;  ///< that it needs; 0: any, as data parallelism
};

/// All, peers first, by the name that `--contestants` takes. Ours are there twice, the second time
/// with `vendor_check` and the ending "_vendor".
const std::vector<Contestant>& contestants();

/// UserError, naming the contestants there are, if `name` is none of them.
const Contestant& contestant_named(const std::string& name);

/// A model and the length of its runs; the peers' scripts know the same by name.
struct Shape {
  int seq_len, global_batch, steps;
};
const std::map<std::string, Shape>& shapes();  ///< tiny, small

struct Job {
  std::string size;   ///< a key of shapes()
  std::string dtype;  ///< fp32, bf16
  int num_ranks = 2;  ///< of contestants that take any number
  int threads = 1;    ///< of each rank
};

/// Ranks that `contestant` runs on.
int ranks_of(const Contestant& contestant, const Job& job);

struct Result {
  double tokens_per_second = 0;   ///< of the median step, the first three left out
  double peak_memory_mib = 0;     ///< resident, of the rank with most
  double first_step_seconds = 0;  ///< from the launch command to the end of step 1
  double last_loss = 0;
  double foreign_cpu = 0;     ///< share of the machine that other programs took meanwhile
  double matmul_limit = 0;    ///< FLOP/s of all ranks, measured in the run; 0: unknown (peers)
  double mfu = 0;             ///< share of it; peers: 0
  double wait_share = 0;      ///< of the time, spent waiting for communication; peers: 0
  nlohmann::json versions{};  ///< peers: of Python and its packages
};

/// A result, or why there is none.
struct Outcome {
  enum class Kind { done, unsupported, failed } kind = Kind::done;
  Result result;
  std::string why;
};

struct RunnerOptions {
  std::string python = "python3";
  std::string peers;                ///< folder of the scripts; "": peers do not take part
  std::string errors = "build";     ///< folder for what failed runs wrote to stderr
  int run_deadline_seconds = 1200;  ///< a run that takes longer is ended and counts as failed
};

/// Runs contestants on the same tokens (the system's licence texts, 250 kB that every Debian has),
/// in a temporary folder that goes with it. UserError if there are no such texts.
class Runner {
 public:
  explicit Runner(RunnerOptions options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Why a contestant cannot run here; "": it can.
  std::string why_not(const Contestant& contestant) const;

  /// From the launch to the last step. What a failed run wrote to stderr stays in `errors`, as
  /// NAME.SIZE.DTYPE.stderr.
  Outcome run(const Contestant& contestant, const Job& job) const;

  /// Writes a job of ours for `tessera train`, and gives its path.
  std::filesystem::path write_job(const OurRun& run, const Job& job) const;

 private:
  Outcome run_peer(const PeerScript& script, const Job& job) const;
  Outcome run_ours(const OurRun& run, const Job& job) const;
  std::string with_deadline(const std::string& command) const;

  RunnerOptions options_;
  std::filesystem::path folder_, bin_, tokens_, errors_;
};

/// The outcome that a peer's script printed as `printed`; `why` is set unless there is a summary.
Outcome outcome_of_peer(const std::string& printed);

/// What a command prints to stdout, whatever its exit status.
std::string output_of(const std::string& command);

/// `text` as one word of a shell command.
std::string quoted(const std::string& text);

double median(std::vector<double> values);  ///< 0 if there are none

}  // namespace tessera::bench
