// tessera schedule: pipeline schedules by name or from a file, proved, timed and drawn before
// anything runs.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cli/choices.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"
#include "tessera/report/terminal.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/csv.h"
#include "tessera/schedule/draw.h"
#include "tessera/schedule/generate.h"
#include "tessera/schedule/simulate.h"

namespace tessera::cli {
namespace {

using namespace schedule;
using Json = nlohmann::ordered_json;

constexpr const char* kScheduleFooter =
    R"(Times are of one stage, one value or one for each stage. What is not given: a forward takes 1, each part of a
backward as long as a forward. docs/schedules.md explains what is printed.
Examples:
  tessera schedule
  tessera schedule 1F1B --ranks 4 --micro-batches 8
  tessera schedule ZB-2p --ranks 8 --micro-batches 32 --forward-ms 18.5 --input-ms 18.1 --weight-ms 9.3 --transfer-ms 0.6
  tessera schedule Interleaved1F1B --ranks 4 --micro-batches 8 --stages-per-rank 2 --svg picture.svg
  tessera schedule ZB-H1 --ranks 4 --micro-batches 8 --csv table.csv
  tessera schedule table.csv --forward-ms 10,12,12,14)";

struct ScheduleArguments {
  std::string what;  ///< a family's name or a .csv file
  std::optional<int> num_ranks, num_micro_batches, stages_per_rank;
  std::vector<double> forward, backward, input, weight;
  std::optional<double> transfer, pair, memory_limit, kept_for_weight;
  std::string svg, csv;
  bool json = false;
};

bool is_file(const std::string& what) { return what.ends_with(".csv"); }

/// `rows` as text, each column wide enough for its longest cell.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string list() {
  std::vector<std::vector<std::string>> rows{{"schedule", "stages on a rank", "bubble", "memory"}};
  for (const auto& family : families()) {
    rows.push_back({family.name,
                    family.most_stages == 0 ? "v" : fmt::format("{}", family.most_stages),
                    family.bubble, family.memory});
  }
  return table(rows) +
         "p ranks, m micro-batches, v stages on a rank (2 unless given); F, I, W: times of a "
         "forward, of the input\nand of the weight part of a backward, FB: of a forward and a "
         "backward at once. Bubble: how long a rank is idle\nin a step; where it has no F, I or W, "
         "the idle share of the step. Memory: most activations (of one stage and\nmicro-batch) "
         "that "
         "a rank keeps.\n";
}

Times times_of(const ScheduleArguments& arguments) {
  Times times;
  if (!arguments.forward.empty()) times.forward = arguments.forward;
  times.input = times.weight = times.forward;
  if (!arguments.backward.empty()) {
    if (!arguments.input.empty() || !arguments.weight.empty()) {
      user_error(
          "schedule: --backward-ms: expected it alone, got --input-ms or --weight-ms beside it; it "
          "is half input and half weight part");
    }
    times.input = arguments.backward;
    for (auto& time : times.input) time /= 2;
    times.weight = times.input;
  }
  if (arguments.input.empty() != arguments.weight.empty()) {
    user_error("schedule: expected --input-ms and --weight-ms, got {} alone",
               arguments.input.empty() ? "--weight-ms" : "--input-ms");
  }
  if (!arguments.input.empty()) times.input = arguments.input, times.weight = arguments.weight;
  times.transfer = arguments.transfer.value_or(0);
  times.pair = arguments.pair.value_or(0);
  return times;
}

void check_values(const ScheduleArguments& arguments) {
  if (const double limit = arguments.memory_limit.value_or(1); !(limit >= 1))
    user_error("schedule: --memory-limit: expected at least 1 activation, got {}", limit);
  if (const double share = arguments.kept_for_weight.value_or(1); !(share >= 0 && share <= 1))
    user_error("schedule: --kept-for-weight: expected a share in [0, 1], got {}", share);
}

bool has(const Schedule& schedule, bool (*is_one)(const Action&)) {
  return std::ranges::any_of(schedule.ranks,
                             [&](const auto& rank) { return std::ranges::any_of(rank, is_one); });
}

/// What is asked for of a table that is given must be what it has.
void check_asked(const Schedule& schedule, const char* option, std::optional<int> asked, int has) {
  if (!asked || *asked == has) return;
  user_error("{}: {}: expected {}, which the table needs, got {}", schedule.name, option, has,
             *asked);
}

Schedule table_of(const ScheduleArguments& arguments) {
  auto schedule = read_csv(arguments.what);
  check_asked(schedule, "--ranks", arguments.num_ranks, schedule.num_ranks());
  check_asked(schedule, "--micro-batches", arguments.num_micro_batches, schedule.num_micro_batches);
  check_asked(schedule, "--stages-per-rank", arguments.stages_per_rank,
              schedule.num_stages / schedule.num_ranks());
  schedule.kept_for_weight = arguments.kept_for_weight.value_or(1);
  if (arguments.memory_limit)
    schedule.peak_limit.assign(schedule.ranks.size(), *arguments.memory_limit);
  check(schedule);
  return schedule;
}

ScheduleOptions options_of(const ScheduleArguments& arguments, const Times& times) {
  const auto family = parse_family(arguments.what);
  const auto& name = facts(family).name;
  if (!arguments.num_ranks) user_error("{}: expected --ranks, got none", name);
  if (!arguments.num_micro_batches) user_error("{}: expected --micro-batches, got none", name);
  return {.family = family,
          .num_ranks = *arguments.num_ranks,
          .num_micro_batches = *arguments.num_micro_batches,
          .stages_per_rank = arguments.stages_per_rank.value_or(0),
          .memory_limit = arguments.memory_limit.value_or(0),
          .kept_for_weight = arguments.kept_for_weight.value_or(1),
          .times = times};
}

/// Settings that this table leaves without effect are mistakes.
void check_effect(const ScheduleArguments& arguments, const Schedule& schedule) {
  if (arguments.pair && !has(schedule, [](const Action& action) { return action.with_next; })) {
    user_error("{}: --pair-ms: no forward and backward are computed at once; leave it out",
               schedule.name);
  }
  const auto is_weight = [](const Action& action) { return action.kind == Kind::backward_weight; };
  if (arguments.kept_for_weight && !has(schedule, is_weight)) {
    user_error("{}: --kept-for-weight: no backward is split; leave it out", schedule.name);
  }
}

struct ScheduleOutcome {
  Schedule schedule;
  Times times;
  Simulation simulation;
  std::vector<double> peaks;
  std::optional<Prediction> prediction;
  std::string unit;

  bool has_barrier_cost() const {
    return simulation.makespan > simulation.longest_span * (1 + 1e-9);
  }
};

std::vector<int> stages_of(const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.num_stages; ++stage)
    if (schedule.rank_of_stage[static_cast<size_t>(stage)] == rank) stages.push_back(stage);
  return stages;
}

std::string headline(const ScheduleOutcome& outcome) {
  const auto& schedule = outcome.schedule;
  const auto ending = [](int number, const char* plural) { return number == 1 ? "" : plural; };
  const int ranks = schedule.num_ranks(), stages = schedule.num_stages,
            micro_batches = schedule.num_micro_batches;
  return fmt::format("{}: {} rank{}, {} stage{}, {} micro-batch{}", schedule.name, ranks,
                     ending(ranks, "s"), stages, ending(stages, "s"), micro_batches,
                     ending(micro_batches, "es"));
}

std::string times_text(const ScheduleOutcome& outcome) {
  const auto& times = outcome.times;
  const auto one = [&](const char* name, const std::vector<double>& values) {
    return fmt::format("{} {:.6g}", name, fmt::join(values, ","));
  };
  auto text = fmt::format("{}, {}, {}, transfer {:.6g}{}", one("forward", times.forward),
                          one("input part", times.input), one("weight part", times.weight),
                          times.transfer, outcome.unit);
  if (times.pair > 0) text += fmt::format(", both at once {:.6g}{}", times.pair, outcome.unit);
  return text;
}

std::string bubble_text(const ScheduleOutcome& outcome) {
  const auto& run = outcome.simulation;
  const auto by_formula = [&](bool without_barrier) {
    const auto& prediction = outcome.prediction;
    if (!prediction || prediction->without_barrier != without_barrier) return std::string();
    return fmt::format("; {} without transfers: {:.2f} %", prediction->formula,
                       100 * prediction->bubble);
  };
  auto text = fmt::format("time {:.6g}{}, bubble (idle share of all ranks' time) {:.2f} %{}\n",
                          run.makespan, outcome.unit, 100 * run.bubble(), by_formula(false));
  const auto other = by_formula(true);
  if (outcome.has_barrier_cost() || !other.empty()) {
    text += fmt::format(
        "where ranks do not wait for each other between steps: time {:.6g}{}, bubble "
        "{:.2f} %{}\n",
        run.longest_span, outcome.unit, 100 * run.bubble_without_barrier(), other);
  }
  return text;
}

std::string rank_table(const ScheduleOutcome& outcome) {
  const auto& schedule = outcome.schedule;
  const bool is_limited = !schedule.peak_limit.empty();
  std::vector<std::vector<std::string>> rows{{"rank", "stages", "bubble", "peak activations"}};
  if (is_limited) rows[0].emplace_back("at most");
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    rows.push_back({fmt::format("{}", rank),
                    fmt::format("{}", fmt::join(stages_of(schedule, rank), " ")),
                    fmt::format("{:.2f} %", 100 * outcome.simulation.bubble(rank)),
                    fmt::format("{:.6g}", outcome.peaks[at])});
    if (is_limited) rows.back().push_back(fmt::format("{:.6g}", schedule.peak_limit[at]));
  }
  return table(rows);
}

Json rank_json(const ScheduleOutcome& outcome, int rank) {
  const auto at = static_cast<size_t>(rank);
  const auto& schedule = outcome.schedule;
  Json actions = Json::array();
  for (size_t i = 0; i < schedule.ranks[at].size(); ++i) {
    const auto& span = outcome.simulation.spans[at][i];
    actions.push_back(
        {{"action", name_of(schedule.ranks[at][i])}, {"start", span.start}, {"end", span.end}});
  }
  return {{"rank", rank},
          {"stages", stages_of(schedule, rank)},
          {"busy", outcome.simulation.busy[at]},
          {"bubble", outcome.simulation.bubble(rank)},
          {"peak_activations", outcome.peaks[at]},
          {"peak_limit", schedule.peak_limit.empty() ? Json() : Json(schedule.peak_limit[at])},
          {"actions", actions}};
}

Json json_of(const ScheduleOutcome& outcome) {
  const auto& schedule = outcome.schedule;
  Json formula;
  if (outcome.prediction) {
    formula = {{"text", outcome.prediction->formula},
               {"bubble", outcome.prediction->bubble},
               {"without_barrier", outcome.prediction->without_barrier}};
  }
  Json ranks = Json::array();
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) ranks.push_back(rank_json(outcome, rank));
  return {{"schedule", schedule.name},
          {"ranks", schedule.num_ranks()},
          {"stages", schedule.num_stages},
          {"micro_batches", schedule.num_micro_batches},
          {"time", outcome.simulation.makespan},
          {"bubble", outcome.simulation.bubble()},
          {"time_without_barrier", outcome.simulation.longest_span},
          {"bubble_without_barrier", outcome.simulation.bubble_without_barrier()},
          {"formula", formula},
          {"peak_activations", std::ranges::max(outcome.peaks)},
          {"per_rank", ranks}};
}

ScheduleOutcome outcome_of(const ScheduleArguments& arguments) {
  check_values(arguments);
  ScheduleOutcome outcome{.times = times_of(arguments)};
  if (is_file(arguments.what)) {
    outcome.schedule = table_of(arguments);
  } else {
    const auto options = options_of(arguments, outcome.times);
    outcome.schedule = make_schedule(options);
    outcome.prediction = predict_bubble(options);
  }
  check_effect(arguments, outcome.schedule);
  outcome.simulation = simulate(outcome.schedule, outcome.times);
  outcome.peaks = peak_activations(outcome.schedule);
  const bool is_measured = !arguments.forward.empty() || !arguments.backward.empty() ||
                           !arguments.input.empty() || arguments.transfer || arguments.pair;
  outcome.unit = is_measured ? " ms" : "";
  return outcome;
}

void write_svg(const std::string& file, const ScheduleOutcome& outcome) {
  const auto subtitle =
      fmt::format("{}; time {:.6g}{}, bubble {:.2f} %, at most {:.6g} activations on a rank",
                  times_text(outcome), outcome.simulation.makespan, outcome.unit,
                  100 * outcome.simulation.bubble(), std::ranges::max(outcome.peaks));
  write_output(file, schedule_svg(outcome.schedule, outcome.simulation,
                                  {.title = headline(outcome),
                                   .subtitle = subtitle,
                                   .unit = outcome.unit.empty() ? "" : "ms"}));
}

void run_schedule(const ScheduleArguments& arguments) {
  for (const auto& file : {arguments.svg, arguments.csv})
    if (!file.empty()) check_output(file, "set --svg and --csv");
  const auto outcome = outcome_of(arguments);
  if (!arguments.svg.empty()) write_svg(arguments.svg, outcome);
  if (!arguments.csv.empty()) write_output(arguments.csv, csv_text(outcome.schedule));
  if (arguments.json) {
    fmt::print("{}\n", json_of(outcome).dump(2));
    return;
  }
  fmt::print(
      "{}; {}\n{}{}{}", headline(outcome), times_text(outcome),
      schedule_text(outcome.schedule, outcome.simulation, report::terminal_columns(STDOUT_FILENO)),
      bubble_text(outcome), rank_table(outcome));
  for (const auto& file : {arguments.svg, arguments.csv})
    if (!file.empty()) fmt::print("wrote {}\n", file);
}

}  // namespace

void add_schedule(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ScheduleArguments>();
  auto* command = app.add_subcommand(
      "schedule", "Check, time and draw a pipeline schedule; without a name, list them");
  command->footer(kScheduleFooter);
  std::vector<std::string> names;
  for (const auto& facts : families()) names.emplace_back(facts.name);
  takes(command->add_option(
            "NAME", arguments->what,
            "A schedule, or a .csv file of actions as PyTorch writes and torchtitan reads it"),
        names);
  command->add_option("--ranks", arguments->num_ranks, "Of the pipeline");
  command->add_option("--micro-batches", arguments->num_micro_batches, "Of a step");
  command->add_option("--stages-per-rank", arguments->stages_per_rank,
                      "2 unless given, where a schedule takes several");
  const auto add_times = [&](const char* name, std::vector<double>& times, const char* meaning) {
    command->add_option(name, times, meaning)->delimiter(',');
  };
  add_times("--forward-ms", arguments->forward, "A stage's forward of one micro-batch");
  add_times("--backward-ms", arguments->backward, "Its backward, half input and half weight part");
  add_times("--input-ms", arguments->input, "The input part of its backward");
  add_times("--weight-ms", arguments->weight, "The weight part of its backward");
  command->add_option("--transfer-ms", arguments->transfer,
                      "From one rank to the next; 0 unless given");
  command->add_option("--pair-ms", arguments->pair,
                      "A forward and a backward at once; unless given as long as both");
  command->add_option(
      "--memory-limit", arguments->memory_limit,
      "Most activations of one stage and micro-batch on a rank: ZB-1p and ZB-2p keep "
      "to it, others are refused above it");
  command->add_option("--kept-for-weight", arguments->kept_for_weight,
                      "Share of an activation that stays until the weight part; 1 unless given");
  command->add_option("--svg", arguments->svg, "Picture to write");
  command->add_option("--csv", arguments->csv,
                      "Table to write, which this command and torchtitan read");
  command->add_flag("--json", arguments->json, "As JSON, with every action's start and end");
  command->callback([arguments, command, &exit_code] {
    if (!arguments->what.empty()) {
      run_schedule(*arguments);
    } else if (command->count_all() > 1) {
      user_error("schedule: expected a schedule's name or a .csv file, got options alone");
    } else {
      fmt::print("{}", list());
    }
    exit_code = 0;
  });
}

}  // namespace tessera::cli
