#include "tessera/parallel/data/parameter_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <sstream>
#include <string>

namespace tessera::parallel {
namespace {

// One line per parameter: "name dtype [shape] checksum".
std::string describe(const std::vector<FlatBuffer>& buffers) {
  std::string text;
  for (const auto& buffer : buffers) {
    for (const auto& entry : buffer.entries()) {
      const auto values = entry.parameter.detach().cpu();
      text += fmt::format("{} {} [{}] checksum {:016x}\n", entry.name,
                          c10::toString(values.scalar_type()), fmt::join(values.sizes(), ", "),
                          XXH3_64bits(values.const_data_ptr(), values.nbytes()));
    }
  }
  return text;
}

}  // namespace

void check_same_parameters(const std::vector<FlatBuffer>& buffers, const mesh::Axis& axis) {
  if (axis.size() == 1) return;
  const auto all = axis.all_gather_bytes(describe(buffers));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream expected(all[0]), actual(all[rank]);
    std::string expected_line, actual_line;
    do {
      expected_line.clear(), actual_line.clear();
      std::getline(expected, expected_line);
      std::getline(actual, actual_line);
    } while (expected_line == actual_line && expected);
    TORCH_CHECK_VALUE(false, "parameters differ at the start: expected '", expected_line,
                      "' as on rank 0, rank ", rank, " has '", actual_line,
                      "'; load or initialise all ranks alike");
  }
}

}  // namespace tessera::parallel
