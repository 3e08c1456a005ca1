// What an exported folder says of itself.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/checkpoint/formats/training_source.h"

namespace tessera::cli {

/// README.md for the Hugging Face Hub, of a model that Tessera trained: base model, architecture, steps, tokens and losses up to its
/// checkpoint, from the run's metrics.jsonl, and the job file; nothing that is not written there. "" for
/// other models. UserError: a metrics.jsonl that is none.
std::string model_card(const checkpoint::TrainingSource& training, const std::string& name);

}  // namespace tessera::cli
