// PyTorch's files of pipeline schedules, as torchtitan reads them
// (`pipeline_parallel_schedule_csv`).
#pragma once

#include <filesystem>
#include <string>

#include "tessera/schedule/table.h"

namespace tessera::schedule {

/// The table in `path`. One line is a rank, one cell a slot, which may be empty:
///
///     0F0,0F1,,0I0,0W0      stage 0: forward of micro-batches 0 and 1, both parts of a backward
///     (1F1;2B0)OVERLAP_F_B  two at the same time
///
/// B is a whole backward. Ranks, stages and micro-batches are counted, a stage is on the rank that
/// computes it. What PyTorch adds when it lowers a table (SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD,
/// RESHARD, REDUCE_GRAD) follows from the actions and is left out. Format:
/// torch.distributed.pipelining.schedules, PyTorch 2.11.
///
/// The table is read, not checked: see `check` (check.h). Throws UserError with file, line and
/// cell.
Schedule read_csv(const std::filesystem::path& path);

/// The same format, without what is left out above. Each action stands in its earliest slot where
/// each takes one, so that the columns are steps of time. The schedule must have passed `check`.
std::string csv_text(const Schedule& schedule);

}  // namespace tessera::schedule
