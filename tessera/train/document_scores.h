// How likely a model finds the documents of its data, in every layout.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/train/assemble.h"

namespace tessera::train {

/// Sums of the log-probabilities of what is learned of each document (Rows::num_documents of them; 0 for those that are in no
/// row), the same on every rank. `on_batch` hears how many of all batches are done. Cost: a forward
/// over the data, which ranks divide. Collective.
std::vector<double> document_scores(
    Run& run, const data::Loader& loader,
    const std::function<void(int64_t done, int64_t total)>& on_batch = {});

}  // namespace tessera::train
