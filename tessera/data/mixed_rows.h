// Rows of several sources, each drawn by its weight.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/rows.h"

namespace tessera::data {

/// The rows of sources, one source after the other; a loader draws them by weight (mixture.h).
class MixedRows : public Rows {
 public:
  /// `weights`: none, or one of each source. None: all rows alike.
  MixedRows(std::vector<std::shared_ptr<const Rows>> sources, std::vector<double> weights);

  int64_t size() const override { return ends_.back(); }
  int64_t seq_len() const override { return sources_.front()->seq_len(); }
  int64_t num_documents() const override;
  int64_t num_tokens() const override;
  std::string digest() const override;  ///< of the weights, too
  std::vector<WeightedRows> sources() const override;
  void read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
            std::vector<DocumentRange>& documents) const override;

 private:
  std::vector<std::shared_ptr<const Rows>> sources_;
  std::vector<double> weights_;
  std::vector<int64_t> ends_;             ///< rows up to the end of each source
  std::vector<int64_t> first_documents_;  ///< documents before each source
};

}  // namespace tessera::data
