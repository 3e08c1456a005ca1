#include "tessera/schedule/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/tables.h"

namespace tessera::schedule {
namespace {

std::string letters(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (c != '-') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

void check_options(const ScheduleOptions& options) {
  const auto& family = facts(options.family);
  if (options.num_ranks < 1)
    user_error("{}: expected at least 1 rank, got {}", family.name, options.num_ranks);
  if (options.num_micro_batches < 1) {
    user_error("{}: expected at least 1 micro-batch, got {}", family.name,
               options.num_micro_batches);
  }
  const int stages = options.stages_per_rank;
  if (stages < family.least_stages || (family.most_stages > 0 && stages > family.most_stages)) {
    user_error(
        "{}: expected {} stage{} on each rank, got {}{}", family.name, family.least_stages,
        family.most_stages == 0   ? " or more"
        : family.most_stages == 1 ? ""
                                  : "s",
        stages,
        family.most_stages == 1 ? "; use Interleaved1F1B, LoopedBFS or InterleavedZeroBubble" : "");
  }
  if (static_cast<double>(options.num_ranks) * stages * options.num_micro_batches > kMostCells) {
    user_error("{}: {} ranks, {} stages on each and {} micro-batches are too many; take fewer",
               family.name, options.num_ranks, stages, options.num_micro_batches);
  }
  check_times(options.times, options.num_ranks * stages, family.name);
  if (options.family == Family::dual_pipe_v && options.num_micro_batches < 2 * options.num_ranks) {
    user_error(
        "DualPipeV: needs two micro-batches for each rank, {} or more, got {}; take as many, or "
        "ZBVZeroBubble",
        2 * options.num_ranks, options.num_micro_batches);
  }
  if (options.memory_limit != 0 && options.memory_limit < 1) {
    user_error("{}: expected a memory limit of at least 1 activation, got {}", family.name,
               options.memory_limit);
  }
  if (options.kept_for_weight < 0 || options.kept_for_weight > 1) {
    user_error("{}: expected a share in [0, 1] to be kept for the weight part, got {}", family.name,
               options.kept_for_weight);
  }
}

Schedule make_table(const ScheduleOptions& options) {
  switch (options.family) {
    case Family::gpipe:
      return gpipe(options);
    case Family::one_f_one_b:
      return one_f_one_b(options);
    case Family::interleaved:
      return interleaved(options);
    case Family::looped_bfs:
      return looped_bfs(options);
    case Family::zb_h1:
      return zb_h1(options);
    case Family::zb_h2:
      return zb_h2(options);
    case Family::zb_1p:
    case Family::zb_2p:
      return automatic(options);
    case Family::interleaved_zero_bubble:
      return interleaved_zero_bubble(options);
    case Family::zbv:
      return zbv(options);
    case Family::dual_pipe_v:
      return dual_pipe_v(options);
  }
  return {};
}

}  // namespace

const std::vector<FamilyFacts>& families() {
  static const std::vector<FamilyFacts> all = {
      {Family::gpipe, "GPipe", "(p-1)/(m+p-1)", "m"},
      {Family::one_f_one_b, "1F1B", "(p-1)/(m+p-1)", "p"},
      {Family::interleaved, "Interleaved1F1B", "(p-1)/(vm+p-1)", "(v+1)p-1", 1, 0},
      {Family::looped_bfs, "LoopedBFS", "(p-1)/(vm+p-1)", "vm", 1, 0},
      {Family::zb_h1, "ZB-H1", "(p-1)(F+I-W)", "p"},
      {Family::zb_h2, "ZB-H2", "(p-1)(F+I-2W), no barrier", "2p-1"},
      {Family::zb_1p, "ZB-1p", "least within its memory", "p"},
      {Family::zb_2p, "ZB-2p", "least within its memory", "2p"},
      {Family::interleaved_zero_bubble, "InterleavedZeroBubble", "(p-1)(F+I-W)", "vp", 1, 0},
      {Family::zbv, "ZBVZeroBubble", "0 if F=I=W, no barrier", "2p", 2, 2},
      {Family::dual_pipe_v, "DualPipeV", "(p-1)(FB+I-2W)", "2p+1", 2, 2},
  };
  return all;
}

const FamilyFacts& facts(Family family) { return families()[static_cast<size_t>(family)]; }

Family parse_family(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& family : families()) {
    if (letters(family.name) == letters(name)) return family.family;
    names.push_back(family.name);
  }
  user_error("expected a schedule ({}) or a .csv file with one, got '{}'{}", fmt::join(names, ", "),
             name, did_you_mean(name, names));
}

int stages_per_rank(const ScheduleOptions& options) {
  if (options.stages_per_rank != 0) return options.stages_per_rank;
  return facts(options.family).most_stages == 1 ? 1 : 2;
}

Schedule make_schedule(const ScheduleOptions& asked) {
  auto options = asked;
  options.stages_per_rank = stages_per_rank(asked);
  check_options(options);
  auto schedule = make_table(options);
  schedule.name = facts(options.family).name;
  schedule.kept_for_weight = options.kept_for_weight;
  if (options.memory_limit > 0)
    schedule.peak_limit.assign(schedule.ranks.size(), options.memory_limit);
  check(schedule);
  return schedule;
}

}  // namespace tessera::schedule
