// Tables in boxes, as Accelerate's `estimate-memory` draws them, character for character.
#pragma once

#include <string>
#include <vector>

namespace tessera::report {

/// A box with a title; cells stand centered. Widths count code points.
std::string box_table(const std::string& title, const std::vector<std::string>& headers,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::report
