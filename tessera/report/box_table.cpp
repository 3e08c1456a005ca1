#include "tessera/report/box_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tessera/base/utf8.h"

namespace tessera::report {
namespace {

/// Signed: widths are subtracted.
int64_t code_points(const std::string& text) { return static_cast<int64_t>(num_characters(text)); }

std::string repeated(const char* text, int64_t count) {
  std::string result;
  for (int64_t i = 0; i < count; ++i) result += text;
  return result;
}

/// `text` centered as by Python's str.center: what is odd goes left only if the width is odd too.
std::string centered(const std::string& text, int64_t width) {
  const int64_t margin = std::max<int64_t>(0, width - code_points(text));
  const int64_t left = margin / 2 + (margin & width & 1);
  return repeated(" ", left) + text + repeated(" ", margin - left);
}

std::string line(const char* left, const char* middle, const char* right,
                 const std::vector<int64_t>& widths) {
  std::vector<std::string> parts;
  for (const int64_t width : widths) parts.push_back(repeated("─", width));
  return left + fmt::format("{}", fmt::join(parts, middle)) + right + "\n";
}

std::string row_of(const std::vector<std::string>& cells, const std::vector<int64_t>& widths) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < cells.size(); ++i) parts.push_back(centered(cells[i], widths[i]));
  return fmt::format("│{}│\n", fmt::join(parts, "│"));
}

int64_t sum(const std::vector<int64_t>& values) {
  int64_t result = 0;
  for (const int64_t value : values) result += value;
  return result;
}

}  // namespace

std::string box_table(const std::string& title, const std::vector<std::string>& headers,
                      const std::vector<std::vector<std::string>>& rows) {
  std::vector<int64_t> widths;
  for (size_t i = 0; i < headers.size(); ++i) {
    int64_t width = code_points(headers[i]);
    for (const auto& row : rows) width = std::max(width, code_points(row[i]));
    widths.push_back(width);
  }
  const auto inner = [&] { return sum(widths) + static_cast<int64_t>(widths.size()) - 1; };
  // Accelerate widens by the distance between title and box, and twice, even where it fits.
  if (code_points(title) > sum(widths)) {
    widths.back() += 2 * std::abs(code_points(title) - (inner() + 2));
  }
  std::string table = line("┌", "─", "┐", widths) + "│" + centered(title, inner()) + "│\n" +
                      line("├", "┬", "┤", widths) + row_of(headers, widths) +
                      line("├", "┼", "┤", widths);
  for (const auto& row : rows) table += row_of(row, widths);
  return table + line("└", "┴", "┘", widths);
}

}  // namespace tessera::report
