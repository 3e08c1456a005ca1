// What a run came to: printed at its end, and kept as run_dir/summary.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/expert_load.h"
#include "tessera/report/metrics.h"

namespace tessera::report {

/// Bytes of one rank for one purpose; below 0: not predicted.
struct PredictedBytes {
  std::string name;
  int64_t predicted = -1, measured = 0;
};

/// Seconds a step that a rank stood still for one unit's parameters and gradients.
struct UnitWait {
  std::string unit;
  double seconds = 0;
};

/// A document that was held out: what it gives, what it answers, and what the model did.
struct HeldOutAnswer {
  std::string prompt, expected;  ///< any bytes
  std::optional<std::string>
      before;  ///< before the first step; none: the run went on from a checkpoint
  std::string after;
};

struct RunSummary {
  std::string run_dir;
  int64_t world_size = 1;
  int64_t parameters = 0;
  int64_t steps = 0;         ///< of this run
  double total_seconds = 0;  ///< from launch to the end
  double seconds_to_first_step =
      0;  ///< from launch to the end of the first step; 0: there was none
  double median_step_seconds = 0;
  double tokens_per_second = 0;  ///< of all ranks
  double mfu = -1;               ///< 0..1, below 0: unknown
  double matmul_peak_flops =
      0;  ///< floating-point operations per second of all ranks, to which mfu relates; 0: unknown
  std::string matmul_peak_note;  ///< where the peak is from, such as "measured, fp32"
  double masked_share =
      0;  ///< of the operations counted, those on top where a query's hidden keys count, too
  double communication_wait_share = 0;     ///< of the step time
  std::optional<double> drive_wait_share;  ///< likewise, where something is on drives
  std::vector<UnitWait> unit_waits;        ///< of rank 0
  std::vector<PredictedBytes> memory;      ///< of rank 0, by purpose, each at the most
  std::vector<PredictedBytes> traffic;     ///< of rank 0 in a step, by axis
  int64_t skipped_steps = 0;               ///< NaN or infinity: no update
  double first_loss = 0;
  double last_loss = 0;
  std::optional<double> validation_loss;
  std::optional<double> validation_loss_on_start;  ///< before the first step
  std::optional<StepValue> best_validation;        ///< step and loss of the best so far
  std::string ended_early;  ///< why, in a line; "": the run went to its last step
  std::vector<Figure> validation_figures;
  bool loss_is_by_token = true;            ///< a cross-entropy, of which there is a perplexity
  std::vector<int64_t> peak_memory_bytes;  ///< by rank
  std::optional<std::string> sample;       ///< generated text; any bytes
  std::vector<HeldOutAnswer> answers;      ///< to what was held out
  std::vector<ExpertSummary> experts;      ///< of layers that are mixtures, over the last steps
  std::vector<Fp8Rounding> fp8;            ///< of layers in 8 bits, over the last steps
  bool forced_balance = false;             ///< experts took turns, routers were not asked
};

/// What a summary and a loss curve need of the steps of a run: 24 bytes a step.
class StepTotals {
 public:
  void add(const StepRecord& record);

  /// Fills in steps, median_step_seconds, tokens_per_second, mfu, shares of waiting,
  /// first_loss and last_loss. Times leave out the first step, which holds all warm-up, unless it
  /// is the only one; speed and mfu weigh by time. No step: unchanged.
  void fill(RunSummary& summary) const;

  const std::vector<StepValue>& losses() const { return losses_; }

 private:
  struct Sums {
    double seconds = 0, tokens = 0, waited = 0, mfu_seconds = 0, mfu = 0;  ///< mfu: times seconds
    std::optional<double> waited_for_drives;
    void add(const StepRecord& record);
  };

  std::vector<StepValue> losses_;
  std::vector<double> step_seconds_;
  Sums first_, later_;
};

/// A block of aligned lines for the end of a run, ending with a line feed. The sample comes last;
/// control characters and bytes that are not UTF-8 are shown as `\xNN`, so that generated text cannot
/// steer the terminal.
std::string format_summary(const RunSummary& summary);

/// The same as JSON, indented; numbers that are not finite and what is unknown are null.
std::string to_json(const RunSummary& summary);

}  // namespace tessera::report
