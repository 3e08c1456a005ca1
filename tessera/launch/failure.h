// Which rank's failure was the cause, and how it is told.
#pragma once

#include <string>

#include "tessera/launch/supervisor.h"

namespace tessera::launch {

/// Fills in RankEnd::missed from the ranks' last lines: of the ranks that others say "did not come"
/// (comm/roll_call.h), those that still ran when we ended them, and do not miss another themselves.
void note_missed(AttemptEnd& attempt);

/// The rank to blame; nullptr if none failed. Of those that failed before we stopped the others:
/// one killed by a signal before one that exited, else the first in time. If their last lines only
/// tell of a lost peer: the rank that did not come, one that was stopped first.
const RankEnd* first_cause(const AttemptEnd& attempt);

/// "rank 1 (pid 123) was killed by SIGKILL (9) at step 17", ".. exited with code 3", ".. was
/// stopped (SIGSTOP or a debugger) ..", ".. still ran but did not come ..".
std::string describe(const RankEnd& rank);

/// The exit code, or 128 + signal; 1 for a rank that did not come, whatever we ended it with.
int exit_code(const RankEnd& rank);

/// Tells on stderr what `cause` was: a line, what a rank said that waited for it in vain, and its
/// last lines (dim on a terminal), or in plain mode only what was not shown yet.
void report_failure(const RankEnd& cause, const AttemptEnd& attempt, OutputMode output);

/// Tells on stderr that the user's own signal ended the attempt, and at which step.
void report_signal(const AttemptEnd& attempt, OutputMode output);

}  // namespace tessera::launch
