// A schedule as a picture: a line for each rank, time from left to right.
#pragma once

#include <string>

#include "tessera/schedule/simulate.h"
#include "tessera/schedule/table.h"

namespace tessera::schedule {

struct DrawOptions {
  std::string title, subtitle;
  std::string unit = "ms";  ///< of the times
};

/// A standalone SVG, in light or dark colours as the viewer prefers: a box for each action with its
/// micro-batch where there is room, in a colour by kind, paler for a rank's later stages; both
/// actions of a pair at half height. Right of it each rank's bubble and most activations. As wide
/// as the shortest action needs for its number, but at most 6000.
std::string schedule_svg(const Schedule& schedule, const Simulation& simulation,
                         const DrawOptions& options = {});

/// One line for each rank, at most `columns` wide (at least 40), and one that explains the signs.
/// Where every action has room it is named, "F3" or with several stages on a rank "5F3", and dashes
/// say how long it takes; else a column is a piece of time, with a letter of what is in it:
/// over several columns each kind has its share.
std::string schedule_text(const Schedule& schedule, const Simulation& simulation, int columns = 80);

}  // namespace tessera::schedule
