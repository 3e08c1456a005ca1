#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tessera/schedule/draw.h"

namespace tessera::schedule {
namespace {

constexpr int kLeast = 40;

/// A line's time as columns.
struct Scale {
  double columns_per_time = 1;
  int num_columns = 1;

  int column(double time) const {
    return std::min(num_columns, static_cast<int>(std::lround(time * columns_per_time)));
  }
};

double shortest_action(const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& rank : simulation.spans) {
    for (const auto& span : rank)
      if (span.end > span.start) shortest = std::min(shortest, span.end - span.start);
  }
  return shortest;
}

bool has_turns(const Schedule& schedule) { return schedule.num_stages > schedule.num_ranks(); }

bool is_pair(const std::vector<Action>& actions, size_t i) {
  return actions[i].with_next || (i > 0 && actions[i - 1].with_next);
}

std::string label(const Schedule& schedule, const std::vector<Action>& actions, size_t i) {
  auto name = name_of(actions[i]);
  if (!has_turns(schedule)) name.erase(0, name.find_first_of("FBIW"));
  return actions[i].with_next ? name + "+" + label(schedule, actions, i + 1) : name;
}

size_t longest_label(const Schedule& schedule) {
  size_t longest = 0;
  for (const auto& actions : schedule.ranks) {
    for (size_t i = 0; i < actions.size(); ++i)
      longest = std::max(longest, label(schedule, actions, i).size());
  }
  return longest;
}

std::string named(const Schedule& schedule, size_t rank, const std::vector<Span>& spans,
                  const Scale& scale) {
  std::string line(static_cast<size_t>(scale.num_columns), ' ');
  const auto& actions = schedule.ranks[rank];
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto from = static_cast<size_t>(scale.column(spans[i].start));
    const auto end = static_cast<size_t>(scale.column(spans[i].end));
    if (end <= from) continue;  // takes no time
    std::string text = label(schedule, actions, i);
    text.resize(std::max(text.size(), end - from - 1), '-');
    line.replace(from, text.size(), text);
    if (actions[i].with_next) ++i;
  }
  return line;
}

/// F, B, I, W; small ones for a rank's later stages; X for a pair. Each column shows one of what is
/// in it, that of which the columns so far have shown the least of what there was.
std::string in_letters(const Schedule& schedule, size_t rank, const std::vector<Span>& spans,
                       const Scale& scale) {
  constexpr std::string_view kLetters = "FBIWfbiwX.";
  std::string line;
  const auto& actions = schedule.ranks[rank];
  size_t first = 0;
  std::array<double, kLetters.size()> owed{};  // time that no column has shown yet
  for (int column = 0; column < scale.num_columns; ++column) {
    const double start = column / scale.columns_per_time,
                 end = (column + 1) / scale.columns_per_time;
    std::array<bool, kLetters.size()> is_here{};
    double idle = end - start;
    while (first < spans.size() && spans[first].end <= start) ++first;
    for (size_t i = first; i < spans.size() && spans[i].start < end; ++i) {
      const double share = std::min(end, spans[i].end) - std::max(start, spans[i].start);
      const bool later = actions[i].stage >= schedule.num_ranks();
      const auto letter = is_pair(actions, i)
                              ? kLetters.find('X')
                              : static_cast<size_t>(actions[i].kind) + (later ? 4 : 0);
      if (share <= 1e-9 * end || (i > 0 && actions[i - 1].with_next)) continue;
      is_here[letter] = true;
      owed[letter] += share;
      idle -= share;
    }
    is_here.back() = idle > 1e-9 * end;
    owed.back() += std::max(0.0, idle);
    size_t shown = kLetters.size() - 1;
    for (size_t letter = 0; letter < owed.size(); ++letter) {
      if (is_here[letter] && (!is_here[shown] || owed[letter] > owed[shown])) shown = letter;
    }
    owed[shown] -= end - start;
    line += kLetters[shown];
  }
  return line;
}

std::string signs(const Schedule& schedule, bool is_named) {
  std::array<bool, 4> used{};
  bool pairs = false;
  for (const auto& actions : schedule.ranks) {
    for (const auto& action : actions) {
      used[static_cast<size_t>(action.kind)] = true;
      pairs = pairs || action.with_next;
    }
  }
  constexpr std::array<const char*, 4> kMeanings = {"F forward", "B backward", "I input part",
                                                    "W weight part"};
  std::string text;
  for (size_t kind = 0; kind < used.size(); ++kind)
    if (used[kind]) text += fmt::format("{}{}", text.empty() ? "" : ", ", kMeanings[kind]);
  if (is_named) {
    return text +
           (has_turns(schedule) ? "; 2F1 is stage 2, micro-batch 1" : "; F1 is micro-batch 1");
  }
  if (pairs) text += ", X forward and backward at once";
  return text + (has_turns(schedule) ? ", . idle; small: later stages" : ", . idle");
}

}  // namespace

std::string schedule_text(const Schedule& schedule, const Simulation& simulation, int columns) {
  const auto head = fmt::format("rank {} |", schedule.num_ranks() - 1).size();
  const int room = std::max(kLeast, columns) - static_cast<int>(head) - 1;
  const double shortest = shortest_action(simulation);
  const double span = simulation.makespan;
  if (!std::isfinite(shortest)) return "";
  const double for_names = static_cast<double>(longest_label(schedule) + 1) / shortest;
  const bool is_named = std::lround(span * for_names) <= room;
  // A whole number of columns for the shortest action, if that many are there.
  const double per_time = is_named ? for_names : std::min(room / span, 1 / shortest);
  const Scale scale{per_time, std::max(1, static_cast<int>(std::lround(span * per_time)))};

  std::string text;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& spans = simulation.spans[rank];
    text += fmt::format(
        "{:{}}|{}|\n", fmt::format("rank {}", rank), head - 1,
        is_named ? named(schedule, rank, spans, scale) : in_letters(schedule, rank, spans, scale));
  }
  return text + signs(schedule, is_named) + "\n";
}

}  // namespace tessera::schedule
