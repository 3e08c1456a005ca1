// What preferences are compared with: log-probabilities under the model as it is at the start, computed once and kept beside
// the run, in place of a second copy of the model.
#pragma once

#include <functional>
#include <string>

#include "tessera/train/assemble.h"

namespace tessera::train {

/// In the run folder: {"digest": .., "train": [..], "validation": [..]}, by document, 0 for those that are in no row.
inline constexpr const char* kReferenceFile = "reference_logps.json";

/// Fills run.reference for a loss that has one (else does nothing): from the run folder, or by a forward over all pairs, which
/// ranks divide; then writes them there. The run's weights must be the first ones, so call it before resume(). `say` gets
/// lines for people on every rank. Collective. UserError: what is there is of other data, another model or
/// other settings, and the run is to go on (checkpoint.resume); without, it is computed anew.
void prepare_reference(Run& run, const std::function<void(const std::string& line)>& say);

}  // namespace tessera::train
