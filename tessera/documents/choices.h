// Questions with a choice of answers: how likely is each behind its question?
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/documents/encoder.h"
#include "tessera/records/row.h"

namespace tessera::documents {

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

struct ChoiceOptions {
  std::vector<std::string> paths;  ///< records::RecordOptions
  bool skip_bad_lines = false;     ///< broken rows are counted and left out; else they are an error
  int64_t max_rows = 0;            ///< the first so many; 0: all
};

struct ChoiceRows {
  std::vector<ChoiceRow> rows;  ///< one or more
  int64_t skipped = 0;          ///< broken rows that were left out
  std::string first_skipped;    ///< why, of the first
};

/// UserError: a broken row that is not to be skipped; none that can be answered.
ChoiceRows load_choices(const ChoiceOptions& options);

/// A text as a model's tokens.
using TextTokens = std::function<std::vector<int64_t>(const std::string& text)>;
struct TextEncoding {
  TextTokens whole;  ///< with what the tokenizer puts around a text; at least one token
  TextTokens plain;  ///< without that
};

/// A row's choices, each behind the question and a blank (or what blanks the question ends with), tokenised together as
/// lm-evaluation-harness does it. Learned are a choice's tokens. What is longer than seq_len + 1 loses its beginning.
std::vector<std::vector<MarkedToken>> encode_choices(const ChoiceRow& row,
                                                     const TextEncoding& encoding, int64_t seq_len);

/// Shares of rows whose answer is the likeliest choice.
struct ChoiceFigures {
  double acc = 0, acc_norm = 0;  ///< by the sum; by the sum divided by the choice's characters
  double acc_stderr = 0, acc_norm_stderr = 0;
};

/// `log_probabilities`: of each row's choices, one row after the other. Equal ones: the first is the answer.
ChoiceFigures choice_figures(std::span<const ChoiceRow> rows,
                             std::span<const double> log_probabilities);

}  // namespace tessera::documents
