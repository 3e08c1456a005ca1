// A run's own record of its steps: run_dir/metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/report/sink.h"

namespace tessera::report {

/// A value at a step: (step, value).
using StepValue = std::pair<int64_t, double>;

/// Appends to run_dir/metrics.jsonl one JSON object per line, for each step and validation. A line
/// is one write and stands in the file when the call returns; where a run goes on, one that a crash
/// cut short is removed. Numbers read back to the same bits; a number that is not finite, and an
/// unknown mfu, is null. Move-only.
///
///   {"step":1,"loss":7.62,"grad_norm":1.9,"learning_rate":0.0003,"step_seconds":0.41,
///    "tokens_per_second":4995.1,"mfu":0.61,"tokens_seen":2048,"memory_bytes":429916160,
///    "communication_wait_seconds":0.012}
///   {"step":1,"validation_loss":7.58}
///
/// Further figures (sink.h) stand behind, by their tags: "rewards/margins":0.12, and of a mixture of experts
/// the choices that fell on each, by layer: "moe/tokens":{"0":[12,9,15,12]}. Of layers that multiply in 8 bits,
/// where it was counted, by operand: largest number, scale, shares of under- and overflow, with four digits:
/// "fp8":{"model.layers.0.mlp.up_proj":{"layer":0,"input":[3.1,144.5,0.002,0],"weight":[..],"gradient":[..]}}.
class MetricsLog : public Sink {
 public:
  /// Makes the folder. Throws SystemError if the file cannot be written, UserError if a file to
  /// append to is not such a log.
  explicit MetricsLog(const SinkOptions& options);
  ~MetricsLog() override;
  MetricsLog(MetricsLog&& other) noexcept;
  MetricsLog& operator=(MetricsLog&& other) noexcept;
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// One line, and a second one if the record has a validation loss. Throws SystemError (no space,
  /// ..).
  void step(const StepRecord& record) override;
  void validation(int64_t step, double loss, const std::vector<Figure>& figures = {});

 private:
  void write_line(std::string line);

  std::filesystem::path path_;
  int fd_ = -1;
};

inline constexpr const char* kMetricsFile = "metrics.jsonl";

/// All that a log holds, in the order of the file; null reads as NaN (mfu: -1). A last line cut
/// short is left out.
struct MetricsHistory {
  std::vector<StepRecord> steps;  ///< validation_loss and figures unset
  std::vector<StepValue> validation;
};

/// Reads run_dir/metrics.jsonl. Throws UserError with file and line if it is missing or not such a
/// log.
MetricsHistory read_metrics(const std::filesystem::path& run_dir);

}  // namespace tessera::report
