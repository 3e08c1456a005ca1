// Runs a trial with the real program and compares it with one plain rank.
#pragma once

#include <filesystem>
#include <string>

#include "tests/combinations/draw.h"

namespace tessera::combinations {

enum class Verdict {
  equal,
  refused,  ///< one line, exit code 2: nothing was trained
  failed    ///< another number, another end, or none in time
};

struct Outcome {
  Verdict verdict = Verdict::equal;
  std::string text;  ///< what differs, or the line
  int runs = 0;      ///< of the program
};

/// Trains as `trial` says and as one plain rank does, in folders below `folder`, which is emptied
/// first: losses, gradient norms and validation losses of every step, then the weights and the
/// optimizer's state after the last one. `folder` is left with what is needed to try it again:
/// job.yaml, model/config.json, tokens.bin, and resumed.yaml and accelerate.yaml where there are.
Outcome run_trial(const Trial& trial, const std::filesystem::path& folder);

}  // namespace tessera::combinations
