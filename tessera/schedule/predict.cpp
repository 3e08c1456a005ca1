// The published formulas of idle time, each under the conditions in which a simulation without
// transfers confirms it.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/schedule/generate.h"

namespace tessera::schedule {
namespace {

struct Idle {
  std::string formula;
  double time = 0;  ///< of a rank in a step
  bool without_barrier = false;
};

std::optional<Idle> idle_of(const ScheduleOptions& options, int stages_per_rank) {
  const double p = options.num_ranks, m = options.num_micro_batches;
  const double f = options.times.forward[0], i = options.times.input[0],
               w = options.times.weight[0];
  const bool weights_fit = w <= std::min(f, i);  // into the gaps that they are to fill
  const bool full = m >= p, twice_full = m >= 2 * p - 1;
  switch (options.family) {
    case Family::gpipe:
    case Family::one_f_one_b:
      return Idle{"(p-1)/(m+p-1)", (p - 1) * (f + i + w)};
    case Family::interleaved:
    case Family::looped_bfs:
      if (!full && stages_per_rank > 1) return {};
      return Idle{"(p-1)/(vm+p-1)", (p - 1) * (f + i + w)};
    case Family::zb_h1:
    case Family::interleaved_zero_bubble:
      if (!full || !weights_fit) return {};
      return Idle{"(p-1)(F+I-W)", (p - 1) * (f + i - w)};
    case Family::zb_h2:
      if (!twice_full || !weights_fit) return {};
      return Idle{"(p-1)(F+I-2W)", (p - 1) * (f + i - 2 * w), true};
    case Family::zbv:
      if (!twice_full || f != i || i != w) return {};
      return Idle{"0", 0, true};
    case Family::dual_pipe_v:
      if (!weights_fit || f != i || options.times.pair > 0) return {};
      return Idle{"(p-1)(FB+I-2W)", (p - 1) * (f + 2 * i - w)};
    case Family::zb_1p:
    case Family::zb_2p:
      return {};
  }
  return {};
}

}  // namespace

std::optional<Prediction> predict_bubble(const ScheduleOptions& options) {
  for (const auto* times : {&options.times.forward, &options.times.input, &options.times.weight})
    if (times->size() != 1) return {};
  const int stages = stages_per_rank(options);
  const auto idle = idle_of(options, stages);
  if (!idle) return {};
  const double stage_time =
      options.times.forward[0] + options.times.input[0] + options.times.weight[0];
  const double busy = stage_time * options.num_micro_batches * stages;
  if (busy + idle->time <= 0) return {};
  return Prediction{idle->formula, idle->time / (idle->time + busy), idle->without_barrier};
}

}  // namespace tessera::schedule
