// What a model makes of what is held out, before and after it learned.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/report/summary.h"
#include "tessera/train/assemble.h"

namespace tessera::train {

/// The validation before the first step (train.validate_on_start), and answers to the first held-out documents that begin with
/// something given (train.sample_answers): the likeliest token each time, until the document's own end and not much longer than
/// what the data answers.
class HeldOut {
 public:
  /// UserError: answers are asked for, and no held-out document has a prompt.
  explicit HeldOut(const Run& run);

  using Say = std::function<void(const std::vector<std::string>& lines)>;

  /// Before the first step of a run; not where it goes on. Collective.
  void before(Run& run, report::RunSummary& summary, const Say& say) const;

  /// At the end. Collective.
  void after(Run& run, report::RunSummary& summary) const;

 private:
  struct Document {
    std::vector<int64_t> prompt, answer;
  };

  std::vector<std::string> answers_of(Run& run) const;

  std::vector<Document> documents_;
  std::vector<report::HeldOutAnswer> unanswered_;  // what is given and expected of each
};

}  // namespace tessera::train
