// Questions with a choice of answers that each validation asks (data.choices).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/batch.h"
#include "tessera/documents/choices.h"
#include "tessera/report/sink.h"
#include "tessera/text/tokenizer.h"

namespace tessera::train {

struct Run;

struct Questions {
  std::vector<documents::ChoiceRow> rows;
  data::Loader choices;  ///< each behind its question, one row after the other, as documents
};

/// Reads data.choices; none: nothing. `tokenizer`: of the data; nullptr: data.tokenizer or model.path are asked for one,
/// and where neither has one and the data is text, bytes are tokens. UserError.
std::optional<Questions> open_questions(const config::RunConfig& config,
                                        std::shared_ptr<const text::Tokenizer> tokenizer,
                                        int64_t vocab_size, const data::LoaderOptions& loading);

/// choices/acc and choices/acc_norm, as `tessera evaluate` has them; of no questions nothing. Collective.
std::vector<report::Figure> answer_questions(Run& run);

}  // namespace tessera::train
