// What a run does otherwise than the one that saved a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/formats/base_weights.h"
#include "tessera/checkpoint/held_extents.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// UserError, naming each key, if the checkpoint's config.json is of a model that computes another
/// function from the same parameters (rope_theta, heads, norm_eps, ..). With checkpoint.strict
/// false these are lines.
std::vector<std::string> check_same_function(const Run& run, const checkpoint::Checkpoint& found);

/// UserError, naming the keys, if the checkpoint has other tensors than `expected` because its run had
/// another optimizer, or other states of it.
void check_same_states(const Run& run, const checkpoint::Checkpoint& found,
                       const checkpoint::Expected& expected);

/// UserError if the checkpoint's adapter was trained beside other weights than `base`, or one of
/// the two is a whole model.
void check_same_base(const std::optional<checkpoint::BaseWeights>& base,
                     const checkpoint::Checkpoint& found);

/// A line for each setting that decides what is trained and how, and is another now: seeds, data,
/// batches, optimizer, schedule, precision.
std::vector<std::string> differences(const Run& run, const checkpoint::Checkpoint& found);

}  // namespace tessera::train
