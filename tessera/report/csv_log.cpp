#include "tessera/report/csv_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/report/output.h"

namespace tessera::report {
namespace {

constexpr auto kEveryStep = std::numeric_limits<int64_t>::max();

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return in_quotes(text, '"');
}

/// The next line's cells, whose line end may be inside quotes; takes them off `rest`. None: no
/// whole line is left.
std::optional<std::vector<std::string>> take_line(std::string_view& rest) {
  std::vector<std::string> cells(1);
  bool in_quotes = false;
  for (size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (c == '"') {
      const bool is_second = in_quotes && i + 1 < rest.size() && rest[i + 1] == '"';
      if (is_second) cells.back() += rest[++i];
      in_quotes = in_quotes == is_second;
    } else if (in_quotes || (c != ',' && c != '\n')) {
      cells.back() += c;
    } else if (c == ',') {
      cells.emplace_back();
    } else {
      rest.remove_prefix(i + 1);
      return cells;
    }
  }
  return {};
}

}  // namespace

CsvLog::CsvLog(const SinkOptions& options) : path_(options.run_dir / "metrics.csv") {
  make_folder(options.run_dir);
  if (options.steps_done > 0 && std::filesystem::exists(path_)) {
    keep_steps(options.steps_done);
  } else {
    write_file(path_, "step\n");
  }
}

void CsvLog::keep_steps(int64_t last_step) {
  const MappedFile file(path_);
  auto rest = file.text();
  auto columns = take_line(rest);
  if (!columns || columns->front() != "step") {
    user_error("{}:1: expected a table whose first column is step; move the file away",
               path_.string());
  }
  columns_.assign(columns->begin() + 1, columns->end());
  rewrite(last_step);
}

void CsvLog::rewrite(int64_t last_step) {
  const MappedFile file(path_);
  auto rest = file.text();
  take_line(rest);
  AtomicFile wider(path_);
  std::string header = "step";
  for (const auto& column : columns_) header += "," + cell(column);
  wider.write(header + "\n");
  for_each_line(rest, [&](std::string_view line) {
    const auto row = line.substr(0, line.size() - 1);
    int64_t step = 0;
    const auto [stopped, error] = std::from_chars(row.data(), row.data() + row.size(), step);
    if (error != std::errc())
      user_error("{}: expected rows that begin with a step", path_.string());
    if (step > last_step) return;
    const auto cells = static_cast<size_t>(std::ranges::count(row, ','));
    wider.write(std::string(row) +
                std::string(columns_.size() - std::min(cells, columns_.size()), ',') + "\n");
  });
  wider.commit();
}

void CsvLog::scalars(int64_t step, std::span<const Scalar> scalars) {
  const auto num_columns = columns_.size();
  std::vector<std::string> cells(num_columns);
  for (const auto& [tag, value] : scalars) {
    const auto column = std::ranges::find(columns_, tag) - columns_.begin();
    if (column == std::ssize(columns_)) {
      columns_.push_back(tag);
      cells.emplace_back();
    }
    cells[static_cast<size_t>(column)] = fmt::format("{}", value);
  }
  if (columns_.size() > num_columns) rewrite(kEveryStep);
  append_to_file(path_,
                 fmt::format("{}{}{}\n", step, cells.empty() ? "" : ",", fmt::join(cells, ",")));
}

}  // namespace tessera::report
