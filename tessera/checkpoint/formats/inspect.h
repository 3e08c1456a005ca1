// What a stored set of tensors is, for people and programs.
#pragma once

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/formats/open_source.h"

namespace tessera::checkpoint {

/// {"path", "format", "num_tensors", "num_bytes", "dtypes": {"F32": tensors, ..}};
/// of a checkpoint of ours also
///   {"step", "validation_loss", "num_parameters", "optimizer": {state: tensors, ..},
///    "layout", "state", "model", "files": [{"name", "bytes"}, ..]};
/// if `with_tensors`, also
///   {"tensors": {NAME: {"dtype", "shape", "bytes",
///                       "ranges": [{"begin", "length", "file", "offset",
///                                   "stripe": {"offset", "run", "stride"} (unless whole)}, ..] (ours)},
///                ..}}.
nlohmann::ordered_json inspect(const OpenedSource& opened, bool with_tensors);

}  // namespace tessera::checkpoint
