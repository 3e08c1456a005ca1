// The questionnaire of `tessera config`: which question follows from the answers so far, and what
// they amount to. `cli/` does the asking.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/machine.h"
#include "tessera/config/accelerate/settings.h"

namespace tessera::config::accelerate {

struct Surroundings {
  Machine machine;
  bool slurm = false;  ///< jobs can be submitted from here, or this is one
};

struct Choice {
  std::string value;        ///< what the answer is then
  std::string label;        ///< in words
  std::string consequence;  ///< in memory or speed; "": none worth saying
};

struct Question {
  std::string name;             ///< under which its answer is kept
  std::string text;             ///< ends with a question mark
  std::vector<Choice> choices;  ///< none: anything without a problem is an answer
  std::string default_value;
  std::function<std::string(const std::string&)> problem;  ///< with a text: "expected .."; "": none
};

using Answers = std::map<std::string, std::string>;  ///< by name of the question

/// The first question that matters here and is still open; nothing: all is known. Memory is that of
/// parameters, gradients and AdamW's states by the table of docs/data_parallel.md.
std::optional<Question> next_question(const Surroundings& here, const Answers& answers);

/// What the answers ask of Accelerate; those left open count as their defaults.
Settings settings_from_answers(const Surroundings& here, Answers answers);

/// Settings for one process, or one per GPU, as `accelerate config default` has them.
Settings basic_settings(const Machine& machine, const std::string& mixed_precision);

/// Adds the keys that Accelerate writes today and `settings` lacks, with their defaults.
void complete(Settings& settings);

}  // namespace tessera::config::accelerate
