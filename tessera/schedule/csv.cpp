#include "tessera/schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::schedule {
namespace {

constexpr std::string_view kPair = "OVERLAP_F_B";
constexpr std::array<std::string_view, 4> kKinds = {"F", "B", "I", "W"};  // in the order of Kind
constexpr std::array<std::string_view, 7> kLowered = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                      "UNSHARD", "RESHARD", "REDUCE_GRAD"};
// A larger number is a mistyped one.
constexpr int kMostNumber = 999'999;  // of a stage or a micro-batch

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// The number at the start of `text`, which it takes off.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  if (text.empty() || text[0] < '0' || text[0] > '9') return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > kMostNumber) return {};
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

/// Calls `visit` with each part of `text` between separators.
template <typename Visit>
void split(std::string_view text, char separator, const Visit& visit) {
  for (size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    visit(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
}

/// A cell and where it stands.
struct Cell {
  std::string_view text;
  const std::filesystem::path& path;
  size_t line = 1, column = 1;
};

[[noreturn]] void refuse(const Cell& cell, std::string_view expected) {
  user_error("{}:{}: cell {}: expected {}, got '{}'", cell.path.string(), cell.line, cell.column,
             expected, cell.text.substr(0, 60));
}

/// The action that a part of a cell names; none for what lowering added.
std::optional<Action> parse_action(const Cell& cell, std::string_view text) {
  text = trimmed(text);
  const auto stage = take_number(text);
  if (!stage) refuse(cell, "an action as 2F0: stage, F, B, I or W, micro-batch");
  const auto end = std::min(text.size(), text.find_first_of("0123456789"));
  const auto word = text.substr(0, end);
  text.remove_prefix(end);
  if (std::ranges::find(kLowered, word) != kLowered.end()) return {};
  const auto kind = std::ranges::find(kKinds, word);
  if (kind == kKinds.end()) refuse(cell, "F, B, I or W after the stage");
  const auto micro_batch = take_number(text);
  if (!micro_batch || !text.empty()) refuse(cell, "a micro-batch at the end, as in 2F0");
  return Action{static_cast<Kind>(kind - kKinds.begin()), *stage, *micro_batch};
}

void parse_pair(const Cell& cell, std::vector<Action>& actions) {
  const auto close = cell.text.find(')');
  if (close == std::string_view::npos || trimmed(cell.text.substr(close + 1)) != kPair)
    refuse(cell, "a pair as (1F1;2B0)OVERLAP_F_B");
  std::vector<Action> pair;
  split(cell.text.substr(1, close - 1), ';', [&](std::string_view part) {
    if (const auto action = parse_action(cell, part)) pair.push_back(*action);
  });
  if (pair.size() != 2) refuse(cell, "two actions, as in (1F1;2B0)OVERLAP_F_B");
  pair[0].with_next = true;
  actions.insert(actions.end(), pair.begin(), pair.end());
}

std::vector<Action> parse_line(const std::filesystem::path& path, size_t line,
                               std::string_view text) {
  std::vector<Action> actions;
  size_t column = 0;
  split(text, ',', [&](std::string_view part) {
    const Cell cell{trimmed(part), path, line, ++column};
    if (cell.text.empty()) return;
    if (cell.text.front() == '(') {
      parse_pair(cell, actions);
    } else if (const auto action = parse_action(cell, cell.text)) {
      actions.push_back(*action);
    }
  });
  return actions;
}

void count_and_place(Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    for (const auto& action : actions) {
      schedule.num_stages = std::max(schedule.num_stages, action.stage + 1);
      schedule.num_micro_batches = std::max(schedule.num_micro_batches, action.micro_batch + 1);
    }
  }
  const auto stages = static_cast<size_t>(schedule.num_stages);
  if (stages * static_cast<size_t>(schedule.num_micro_batches) > kMostCells) {
    user_error("{}: {} stages and {} micro-batches are too many; is a number mistyped?",
               schedule.name, schedule.num_stages, schedule.num_micro_batches);
  }
  schedule.rank_of_stage.assign(stages, -1);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const auto& action : schedule.ranks[static_cast<size_t>(rank)]) {
      // If two ranks compute a stage, the first counts as its rank, and `check` names the other.
      auto& owner = schedule.rank_of_stage[static_cast<size_t>(action.stage)];
      if (owner < 0) owner = rank;
    }
  }
}

}  // namespace

Schedule read_csv(const std::filesystem::path& path) {
  Schedule schedule{.name = path.string()};
  const auto content = read_file(path);
  size_t line = 0, num_ranks = 0;
  split(content, '\n', [&](std::string_view text) {
    schedule.ranks.push_back(parse_line(path, ++line, text));
    if (!trimmed(text).empty()) num_ranks = schedule.ranks.size();
  });
  schedule.ranks.resize(num_ranks);  // without empty lines at the end
  if (schedule.ranks.empty())
    user_error("{}: expected one line for each rank, got an empty file", path.string());
  count_and_place(schedule);
  return schedule;
}

std::string csv_text(const Schedule& schedule) {
  const auto slots = slots_of(schedule);
  std::string text;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    std::vector<std::string> cells(static_cast<size_t>(slots[rank].back()) + 1);
    const auto& actions = schedule.ranks[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      auto& cell = cells[static_cast<size_t>(slots[rank][i])];
      if (actions[i].with_next) {
        cell = fmt::format("({};{}){}", name_of(actions[i]), name_of(actions[i + 1]), kPair);
        ++i;
      } else {
        cell = name_of(actions[i]);
      }
    }
    for (size_t i = 0; i < cells.size(); ++i) text += (i == 0 ? "" : ",") + cells[i];
    text += "\n";
  }
  return text;
}

}  // namespace tessera::schedule
