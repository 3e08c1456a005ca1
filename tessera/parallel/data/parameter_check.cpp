#include "tessera/parallel/data/parameter_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <sstream>
#include <string>

namespace tessera::parallel {
namespace {

// One line per unit, one per parameter: "name dtype [shape] checksum".
std::string describe(const std::vector<CheckedUnit>& units, bool with_values) {
  std::string text;
  for (const auto& unit : units) {
    text += fmt::format("unit {}\n", unit.name);
    for (const auto& [name, parameter] : unit.parameters) {
      text += fmt::format("{} {} [{}]{}", name, c10::toString(parameter.scalar_type()),
                          fmt::join(parameter.sizes(), ", "),
                          parameter.requires_grad() ? "" : " frozen");
      if (with_values && !parameter.is_meta()) {
        const auto values = parameter.detach().cpu().contiguous();
        text +=
            fmt::format(" checksum {:016x}", XXH3_64bits(values.const_data_ptr(), values.nbytes()));
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace

void check_same_model(const std::vector<CheckedUnit>& units, bool values, const mesh::Axis& axis,
                      int slice) {
  if (axis.size() == 1) return;
  const auto all = axis.all_gather_bytes(fmt::format("{}\n{}", slice, describe(units, values)));
  const auto slice_of = [&](size_t rank) { return all[rank].substr(0, all[rank].find('\n')); };
  for (size_t rank = 1; rank < all.size(); ++rank) {
    size_t other = 0;  // the first with the same slice
    while (slice_of(other) != slice_of(rank)) ++other;
    if (all[rank] == all[other]) continue;
    std::istringstream expected(all[other]), actual(all[rank]);
    std::string expected_line, actual_line;
    do {
      expected_line.clear(), actual_line.clear();
      std::getline(expected, expected_line);
      std::getline(actual, actual_line);
    } while (expected_line == actual_line && expected);
    TORCH_CHECK_VALUE(false, "models differ at the start: expected '", expected_line,
                      "' as on rank ", other, ", rank ", rank, " has '", actual_line,
                      "'; load or initialise all ranks alike");
  }
}

}  // namespace tessera::parallel
