// How a model may be divided over ranks that compute it together (tensor parallelism; Shoeybi et
// al., Megatron-LM, 2019): data that a model ships, and parallel/tensor carries out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::nn {

/// What becomes of a module. Between modules whose results are summed and those that `enter`,
/// every rank has the same activations, or, with sequence parallelism, its part of each sequence.
enum class TensorStyle {
  column_wise,  ///< Linear, Conv1D: output features and bias are divided
  row_wise,     ///< Linear, Conv1D: input features are divided, results summed, then the bias added
  embedding,    ///< Embedding: rows are divided, results summed
  head,         ///< LanguageModelHead: rows are divided; the loss is that of all
  per_position,  ///< norms, dropout: whole, takes each position by itself
  divided_norm,  ///< RMSNorm over features that are divided as those of a column_wise rule
  per_head,      ///< norms of each head between divided projections: whole
  positions,     ///< embedding of positions: whole; its result goes where activations are
  region  ///< what is inside has rules of its own; its own parameters, if it has `heads`, are
          ///< one number for each, and divided as they are
};

struct TensorRule {
  std::string pattern;  ///< of paths of modules, `*`: any characters
  TensorStyle style = TensorStyle::per_position;
  /// The first argument comes from where activations are the same, or parts of sequences, and is
  /// needed whole; its gradient is summed.
  bool enters = false;
  /// The result is this rank's summand: the sum over ranks goes to where activations are the same,
  /// or this rank's positions of it.
  bool leaves = false;
  /// column_wise, row_wise, region: the divided features are so many heads, which stay whole; 0:
  /// features are divided one by one.
  int64_t heads = 0;
  /// column_wise: with fewer heads than ranks, neighbours have the same one.
  bool repeats_heads = false;
  /// column_wise: so many matrices of one shape side by side, each of them divided (GPT-2's q, k
  /// and v).
  int64_t parts = 1;
  /// row_wise: results stay summands, which a module around it sums (`leaves`); a bias is added by
  /// every rank, its share (LinearImpl::bias_share).
  bool summand = false;
  /// column_wise, row_wise: of an expert, whose ranks are those of the mesh's axis etp, and of which each
  /// takes the tokens that parallel/expert brings it.
  bool of_expert = false;
};

/// Every module with parameters of its own matches one rule.
using TensorPlan = std::vector<TensorRule>;

}  // namespace tessera::nn
