// Questions with a choice of answers, as rows of data sets have them.
#pragma once

#include <string>
#include <vector>

#include "tessera/records/row.h"

namespace tessera::inference {

struct ChoiceRow {
  std::string context;
  std::vector<std::string> choices;  ///< two or more
  size_t answer = 0;                 ///< into choices
};

bool has_choices(const records::Json& row);

/// `question` (or `query`, `context`, `prompt`), `choices` (or `options`, `endings`; a list of texts, or
/// {"text": [..], "label": [..]}) and `answer` (or `answerKey`, `label`, `gold`): a place from 0, a label, a
/// letter, or the text of a choice. UserError without the row's place.
ChoiceRow read_choice_row(const records::Json& row);

}  // namespace tessera::inference
