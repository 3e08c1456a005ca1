// The rows of batches: what to read, what to predict, and which tokens belong together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// A target with this value takes no part in the loss.
inline constexpr int64_t kIgnoredTarget = -100;

/// Tokens [begin, end) of a row.
struct DocumentRange {
  int64_t begin = 0, end = 0;
  int64_t index = 0;  ///< of the document, in its data set
};

/// Rows that are drawn by a weight of their own.
struct WeightedRows {
  int64_t num_rows = 1;
  double weight = 1;
};

/// Rows of seq_len tokens, each with its targets. Read-only; threads may share it.
class Rows {
 public:
  virtual ~Rows() = default;

  virtual int64_t size() const = 0;  ///< rows
  virtual int64_t seq_len() const = 0;
  virtual int64_t num_documents() const { return 0; }  ///< beyond every index that read() tells
  virtual int64_t num_tokens() const = 0;              ///< of all that rows are made of
  /// Another content most likely has another.
  virtual std::string digest() const = 0;

  /// Stretches, one after the other, of which each is drawn by its weight. One: all rows alike.
  virtual std::vector<WeightedRows> sources() const { return {{.num_rows = size()}}; }

  /// `inputs` and `targets`: seq_len each. Targets are the tokens behind the inputs, kIgnoredTarget where there is
  /// nothing to predict. Documents that see themselves alone are appended to `documents`; none: the
  /// row is one.
  virtual void read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
                    std::vector<DocumentRange>& documents) const = 0;
};

}  // namespace tessera::data
