// The wish of a scheduler that a run ends soon, as a rank sees it.
#pragma once

namespace tessera::launch {

/// From now on SIGUSR1 ends this process with kPreemptedExit at once, and a line if it `speaks`: before its first step
/// there is nothing to save. SIGTERM, which also comes where something failed elsewhere, ends it as any program.
void end_on_stop_signal(bool speaks);

/// From now on SIGTERM and SIGUSR1 (Slurm's --signal, a preempted node) do not end this process
/// but are noted. Call it before threads start.
void note_stop_signals();

/// The first that came, or 0. A rank that then saved and ended says so with kPreemptedExit.
int stop_signal();

}  // namespace tessera::launch
