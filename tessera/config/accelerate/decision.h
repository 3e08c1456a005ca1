// What becomes of one key: the answer of every rule of the translation.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/config/accelerate/ledger.h"

namespace tessera::config::accelerate {

struct Decision {
  Verdict verdict = Verdict::honoured;
  std::string note;
  std::vector<std::pair<std::string, std::string>> job;  ///< keys of the job file, and values
  bool if_effective = false;                             ///< as Override::if_effective
};

using JobKeys = std::vector<std::pair<std::string, std::string>>;

inline Decision honoured(std::string note = "") { return {Verdict::honoured, std::move(note), {}}; }
inline Decision translated(JobKeys job, std::string note = "") {
  return {Verdict::translated, std::move(note), std::move(job)};
}
/// The same for what the rest of a configuration may leave without an effect.
inline Decision translated_if_effective(JobKeys job, std::string note = "") {
  return {Verdict::translated, std::move(note), std::move(job), /*if_effective=*/true};
}
inline Decision not_applicable(std::string note) {
  return {Verdict::not_applicable, std::move(note), {}};
}
inline Decision refused(std::string note) { return {Verdict::refused, std::move(note), {}}; }

/// The ledger's note: what is set in the job file, then the decision's own note.
std::string note_of(const Decision& decision);

}  // namespace tessera::config::accelerate
