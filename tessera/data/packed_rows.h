// Rows made of whole documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/data/packing.h"
#include "tessera/data/rows.h"
#include "tessera/documents/documents.h"

namespace tessera::data {

struct PackedRowsOptions {
  int64_t seq_len = 256;
  bool packing = true;  ///< false: a row for each document
  TooLong too_long = TooLong::cut;
  std::string name = "train";  ///< of the documents, in errors
  bool held_out = false;       ///< of these, as validation_fraction says
};

/// What becomes of a data set's rows on their way into rows of a batch.
struct PackedCounts {
  int64_t packed = 0;   ///< that are in some
  int64_t cut = 0;      ///< of these, with fewer tokens than they had
  int64_t dropped = 0;  ///< too long, or with nothing to learn once cut
  int64_t rows = 0;
  int64_t tokens = 0;  ///< in rows
};

/// Documents in rows, none across two, and pairs together; padding behind them is token 0 with every target ignored. A token of seq_len + 1
/// is the last target: a document of that length fills a row.
class PackedRows : public Rows {
 public:
  /// `chosen`: indices of the documents' rows. UserError: one is too long and that is an error; nothing is left.
  PackedRows(std::shared_ptr<const documents::Documents> documents, std::vector<uint32_t> chosen,
             const PackedRowsOptions& options);

  int64_t size() const override { return packing_.num_rows(); }
  int64_t seq_len() const override { return options_.seq_len; }
  int64_t num_documents() const override { return static_cast<int64_t>(documents_->size()); }
  int64_t num_tokens() const override { return documents_->counts().tokens; }
  std::string digest() const override { return documents_->digest(); }
  void read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
            std::vector<DocumentRange>& documents) const override;

  const PackedCounts& counts() const { return counts_; }

 private:
  std::shared_ptr<const documents::Documents> documents_;
  std::vector<uint32_t> chosen_;
  PackedRowsOptions options_;
  Packing packing_;
  PackedCounts counts_;
};

/// Rows of a data set for training and, with a fraction above 0, at least one of every so many, at equal distances, to validate with.
struct DividedRows {
  std::vector<uint32_t> train, validation;
};
DividedRows divide_rows(size_t num_rows, double validation_fraction);

}  // namespace tessera::data
