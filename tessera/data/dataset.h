// Training samples: a token sequence cut into pieces of equal length, and its split into training
// and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/token_source.h"

namespace tessera::data {

/// Samples of seq_len tokens. Sample k of n = (tokens - 1) div seq_len has the inputs [k S, (k + 1)
/// S) and as targets the same shifted by one, so that neighbours share one token and every token
/// but the first is predicted once. A cheap handle: copies share the tokens.
class Dataset {
 public:
  /// All samples of `source`. UserError if it is too short for one.
  Dataset(std::shared_ptr<const TokenSource> source, int64_t seq_len);

  int64_t size() const { return end_ - begin_; }  ///< samples
  int64_t seq_len() const { return seq_len_; }

  /// The seq_len + 1 tokens of a sample: inputs, and one more. UserError at a token beyond the
  /// vocabulary.
  void read(int64_t sample, std::span<int64_t> tokens) const;

  /// Samples [begin, end) as a data set of their own; 0 <= begin < end <= size().
  Dataset slice(int64_t begin, int64_t end) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t seq_len_ = 0;
  int64_t begin_ = 0, end_ = 0;  ///< samples of the source
};

struct DatasetsOptions {
  TokenSourceOptions train;
  std::vector<std::string>
      validation_paths;  ///< read like `train`; empty: the last part of train is held out
  double validation_fraction = 0.01;  ///< of the samples, in [0, 1), at least one; 0: none held out
  int64_t seq_len = 256;
  int64_t vocab_size = 0;  ///< tokens outside [0, vocab_size) are refused; 0: not checked
};

struct Datasets {
  Dataset train;
  std::optional<Dataset> validation;  ///< none: no paths and fraction 0
};

/// Opens, checks (TokenSource::check_vocabulary) and splits. UserError also if train is too short
/// for the split.
Datasets open_datasets(const DatasetsOptions& options);

}  // namespace tessera::data
