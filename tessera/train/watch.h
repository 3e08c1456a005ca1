// Rank 0's view of a run: screen and files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/report/expert_load.h"
#include "tessera/report/fp8_rounding.h"
#include "tessera/report/metrics.h"
#include "tessera/report/progress.h"
#include "tessera/report/sink.h"
#include "tessera/report/summary.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// What is measured goes to the progress line, the metrics and whatever else logging asks for; other
/// ranks have none.
class Watch {
 public:
  /// `steps_done`: of the run that this one goes on from; 0: none.
  Watch(const Run& run, int world_size, int64_t steps_done);

  /// A run that did not finish has failed, as far as others' files are concerned.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void message(const std::string& line) { progress_->message(line); }
  void step(const report::StepRecord& record);

  /// Fills in the totals, draws the loss, prints and keeps the summary.
  void finish(report::RunSummary summary);

 private:
  void introduce(int world_size);
  void add(const report::StepRecord& record);

  const Run& run_;
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<report::Sink>> sinks_;
  report::Progress* progress_ = nullptr;  ///< one of them, which says other things, too
  report::StepTotals totals_;
  report::ExpertTotals experts_;
  report::Fp8Totals fp8_;
  std::vector<report::StepValue> validation_;
};

}  // namespace tessera::train
