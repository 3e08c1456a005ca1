// Which rank's failure was the cause, and how it is told.
#pragma once

#include <string>

#include "tessera/launch/supervisor.h"

namespace tessera::launch {

/// The failed rank to blame; nullptr if none failed. Of those that failed before we stopped the
/// others: one killed by a signal before one that exited, one whose last lines only tell of a lost
/// peer last, else the first in time.
const RankEnd* first_cause(const AttemptEnd& attempt);

/// "rank 1 (pid 123) was killed by SIGKILL (9) at step 17", ".. exited with code 3".
std::string describe(const RankEnd& rank);

/// The exit code, or 128 + signal.
int exit_code(const RankEnd& rank);

/// Tells on stderr what `cause` was: a line and its last lines (dim on a terminal), or in plain
/// mode only what was not shown yet.
void report_failure(const RankEnd& cause, const AttemptEnd& attempt, OutputMode output);

/// Tells on stderr that the user's own signal ended the attempt, and at which step.
void report_signal(const AttemptEnd& attempt, OutputMode output);

}  // namespace tessera::launch
