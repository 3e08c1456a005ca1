// How well a stored model knows texts, and which answers it chooses.
#pragma once

#include "tessera/inference/request.h"
#include "tessera/mesh/mesh.h"

namespace tessera::inference {

/// What `request.files` are is told by their names and first rows:
/// - rows with choices: each choice is scored behind its question, as lm-evaluation-harness does it (context and
///   choice tokenised together, a question's last blanks counted to the choice, a text that is too long cut at its
///   beginning). acc: of the rows, in how many the answer is the likeliest; acc_norm: per character;
/// - other rows of data sets: each document by itself, what is learned of it (documents/encoder.h);
/// - token files and text: as one text, by windows (scores.h).
/// Writes a table, or one JSON object. Collective. UserError: a row that is refused, with its place; tokens beyond the
/// vocabulary; nothing to score.
void evaluate(const Request& request, const mesh::DeviceMesh& mesh);

}  // namespace tessera::inference
