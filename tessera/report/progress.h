// How a run shows that it moves: one line rewritten in place on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/choices.h"
#include "tessera/report/sink.h"

namespace tessera::report {

/// Is a step's line due: that of the first, each `every`-th and the last?
bool line_is_due(int64_t step, int64_t every, int64_t total_steps);

struct ProgressOptions {
  ProgressMode mode = ProgressMode::automatic;
  int64_t total_steps = 0;
  int64_t every = 1;  ///< plain: steps between lines
  int fd = 1;         ///< where to write; stays the caller's
};

/// Shows steps of a run on one process (rank 0). Every update is one write; errors of writing (a
/// closed pipe) are ignored, as they must not end a run. The line fits the terminal, whose width is
/// asked for each time ($COLUMNS or 80 if it does not say): on narrow ones memory, MFU, speed and
/// ETA give way in that order. Colours only on a terminal and without $NO_COLOR; the bar needs a
/// UTF-8 locale and is ASCII in others. Not thread-safe.
class Progress : public Sink {
 public:
  explicit Progress(const ProgressOptions& options);
  /// Calls `end_line`.
  ~Progress() override;

  /// Steps come in order; a resumed run starts above 1. The first step shown gives no ETA, as it
  /// holds all warm-up. The ETA follows a moving average of step_seconds over some twenty steps.
  void step(const StepRecord& record) override;

  /// Prints a line of text; on a terminal above the progress line, which stays.
  void message(const std::string& line);

  /// Ends the progress line, so that what follows starts on a new one. Later steps start another.
  void end_line();
  void finish(bool /*success*/) override { end_line(); }

 private:
  double eta_seconds(const StepRecord& record);

  ProgressOptions options_;
  bool color_ = false;
  bool utf8_ = false;
  int64_t steps_shown_ = 0;
  double mean_seconds_ = 0, mean_weight_ = 0;
  std::string line_;  ///< what stands on the terminal now, without colours' end and line feed;
                      ///< empty: nothing
};

/// "step    12/100  loss 4.1234   grad 1.02    lr 3.00e-04  5,812 tok/s  mfu 64 %  mem 410 MiB  eta 0:31",
/// then "  val 4.0021" if the record has a validation loss. Unknown mfu: "-"; negative
/// `eta_seconds`: no ETA.
std::string plain_line(const StepRecord& record, int64_t total_steps, double eta_seconds);

struct LineStyle {
  int columns = 80;
  bool color = false;
  bool utf8 = true;
};

/// The line of a terminal, at most `columns` - 1 wide (a full line would wrap), without colours if
/// not `color`.
std::string terminal_line(const StepRecord& record, int64_t total_steps, double eta_seconds,
                          const LineStyle& style);

}  // namespace tessera::report
