// Training samples: a token sequence cut into pieces of equal length, and its division into
// training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/rows.h"
#include "tessera/data/token_source.h"

namespace tessera::data {

/// Stretches of tokens at equal distances, each cut into as many samples.
struct Stretches {
  int64_t count = 1;
  int64_t first_token = 0;  ///< of the first stretch
  int64_t stride = 0;       ///< tokens from the first token of one stretch to that of the next
  int64_t num_samples = 0;  ///< of each stretch
};

/// Samples of S = seq_len tokens. Sample k of a stretch has the inputs [k S, (k + 1) S) of it and
/// as targets the same shifted by one, so that neighbours share one token and every token of a
/// stretch but its first is predicted once. A cheap handle: copies share the tokens.
class Dataset : public Rows {
 public:
  /// All (tokens - 1) div S samples of `source`, one stretch. UserError if it is too short for one.
  Dataset(std::shared_ptr<const TokenSource> source, int64_t seq_len);

  int64_t size() const override { return stretches_.count * stretches_.num_samples; }  ///< samples
  int64_t seq_len() const override { return seq_len_; }
  int64_t num_tokens() const override { return source_->size(); }  ///< of the whole source
  std::string digest() const override { return source_->sample_digest(); }

  /// The seq_len + 1 tokens of a sample: inputs, and one more. UserError at a token beyond the
  /// vocabulary.
  void read(int64_t sample, std::span<int64_t> tokens) const;
  void read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
            std::vector<DocumentRange>& documents) const override;

  /// The same samples, of which each holds the documents that end with the token `end`: what would be
  /// predicted across such an end is ignored.
  Dataset with_documents(int64_t end) const;

  /// Parts of the same source, inside it and at least one sample, as a data set of their own.
  Dataset within(const Stretches& stretches) const;

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t seq_len_ = 0;
  Stretches stretches_;
  std::optional<int64_t> document_end_;
};

struct DatasetsOptions {
  TokenSourceOptions train;
  std::vector<std::string> validation_paths;  ///< read like `train`; empty: part of it is held out
  double validation_fraction = 0.01;  ///< of the samples, in [0, 1), at least one; 0: none held out
  int64_t seq_len = 256;
  int64_t vocab_size = 0;      ///< tokens outside [0, vocab_size) are refused; 0: not checked
  bool document_mask = false;  ///< Dataset::with_documents
  std::optional<int64_t> document_end;  ///< none: byte 0 of text; UserError for token files
};

struct Datasets {
  Dataset train;
  std::optional<Dataset> validation;  ///< none: no paths and fraction 0
};

/// Opens, checks (TokenSource::check_vocabulary) and divides. What is held out lies in up to 64
/// stretches at equal distances over all of the tokens (one if there are fewer than 32 samples),
/// since the end of a text is often of another kind than the rest. Training and validation share no
/// token; both depend on the tokens' number, seq_len and the fraction alone. Up to one sample's
/// tokens before each stretch are lost. UserError also if nothing is left to train on.
Datasets open_datasets(const DatasetsOptions& options);

}  // namespace tessera::data
