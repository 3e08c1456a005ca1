// What becomes of each key of an Accelerate configuration here: nothing is ignored in silence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/config/accelerate/settings.h"
#include "tessera/config/run_config.h"

namespace tessera::config::accelerate {

enum class Verdict {
  honoured,        ///< means here what it means there
  translated,      ///< has its effect through the named keys of the job file
  not_applicable,  ///< has no effect here, and need not have one: the note says why
  refused,         ///< would change the run, and cannot be done (yet)
};

struct LedgerEntry {
  Setting setting;
  Verdict verdict = Verdict::honoured;
  std::string note;  ///< "parallel.placement=full_shard", "use_orig_params is always so", ..
};

/// How many processes are started, and where.
struct LaunchPlan {
  int num_processes = 1;  ///< over all machines
  int num_machines = 1;
  int machine_rank = 0;
  std::string main_process_ip;  ///< "": this machine
  int main_process_port = 0;    ///< 0: a free one
  bool cpu = false;             ///< even where there are GPUs
  /// Why nothing can be started, a line with its place: num_processes is missing. "": it can.
  std::string problem;
};

struct Translation {
  std::vector<LedgerEntry> ledger;      ///< every setting, in order; a DeepSpeed file's keys follow
  std::vector<Override> job;            ///< in order; each with the origin of its cause
  std::optional<Setting> accumulation;  ///< forwards in one optimizer step, where that is said
  LaunchPlan launch;
};

/// Decides about every setting. UserError only for settings that contradict each other (both named
/// with their origins), a DeepSpeed file that cannot be read or a missing num_processes; what is
/// refused stands in the ledger.
Translation translate(const Settings& settings);

/// The same for people to read: also without num_processes (LaunchPlan::problem).
Translation explain(const Settings& settings);

/// The defaults with `job` in their place, whether or not it has an effect there.
RunConfig config_of(std::vector<Override> job);

std::string verdict_name(Verdict verdict);  ///< "not applicable"

/// The ledger as a table for people, without secrets (shown_value.h).
std::string ledger_text(const std::vector<LedgerEntry>& ledger);

/// UserError for the first refused entry, and if `strict` for the first that is not applicable.
void check_ledger(const std::vector<LedgerEntry>& ledger, bool strict);

}  // namespace tessera::config::accelerate
