// How each family's table is made; `make_schedule` (generate.h) has checked the options.
#pragma once

#include "tessera/schedule/generate.h"

namespace tessera::schedule {

/// All forwards, then all backwards (Huang et al., GPipe, NeurIPS 2019, section 2.2).
Schedule gpipe(const ScheduleOptions& options);

/// 1F1B: as few forwards ahead as keep the last rank busy (Narayanan et al., Megatron-LM, SC 2021,
/// section 2.2.1).
Schedule one_f_one_b(const ScheduleOptions& options);

/// Several stages on each rank in turn, a group of micro-batches through one before the next stage
/// (Narayanan et al., Megatron-LM, SC 2021, section 2.2.2). There m is a multiple of p; here groups
/// are as even as they can be with at least p each, which is PyTorch's order where it has one.
Schedule interleaved(const ScheduleOptions& options);

/// All micro-batches through one stage before the next (Lamy-Poirier, Breadth-First Pipeline
/// Parallelism, MLSys 2023).
Schedule looped_bfs(const ScheduleOptions& options);

/// 1F1B whose weight parts wait, `r` of them on rank r, so that memory stays that of 1F1B's rank 0
/// (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1).
Schedule zb_h1(const ScheduleOptions& options);

/// ZB-H1 with twice the forwards ahead and twice the weight parts behind: without a bubble if
/// F = I = W and no rank waits for others between steps (same, section 2.2).
Schedule zb_h2(const ScheduleOptions& options);

/// ZB-H1 with several stages on each rank. It keeps the forwards ahead of 1F1B within a stage, half
/// of those of `interleaved`.
Schedule interleaved_zero_bubble(const ScheduleOptions& options);

/// Arranged for the given times within the given memory: see automatic.cpp (same, section 3.1).
Schedule automatic(const ScheduleOptions& options);

/// Two stages on each rank, there and back (same authors, ZB-V, section 6 and appendix): without a
/// bubble if F = I = W, in the memory of 1F1B.
Schedule zbv(const ScheduleOptions& options);

/// The V-shaped half of DualPipe: forwards of one stage are computed at the same time as backwards
/// of the other (DeepSeek-AI, DeepSeek-V3, 2024, section 3.2.1, and the repository DualPipe).
Schedule dual_pipe_v(const ScheduleOptions& options);

}  // namespace tessera::schedule
