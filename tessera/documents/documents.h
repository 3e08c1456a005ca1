// The documents of data sets, as tokens in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/documents/encoder.h"

namespace tessera::documents {

struct DocumentsOptions {
  std::vector<std::string> paths;  ///< records::RecordOptions
  data::RowShape shape = data::RowShape::automatic;
  /// Rows that are broken, or say nothing that can be learned, are counted and left out; else they are an error.
  bool skip_bad_lines = false;
  int64_t max_documents = 0;  ///< the first so many; 0: all
  int num_threads = 1;
};

/// What was read, and what was not.
struct Counts {
  int64_t documents_per_row = 1;  ///< 2: pairs
  int64_t rows = 0;               ///< that became documents
  int64_t bad_rows = 0;           ///< skipped: broken
  std::string first_bad;          ///< why, of the first
  int64_t no_answer = 0;          ///< left out: no token to learn
  int64_t tokens = 0, learned = 0;
};

/// Tokens of documents one after the other, with marks; of a pair, the chosen answer's before the rejected one's.
/// Read-only; 4 bytes a token.
class Documents {
 public:
  size_t size() const { return ends_.size(); }
  size_t num_rows() const { return static_cast<size_t>(counts_.rows); }
  /// Those that row `row` became.
  std::vector<std::span<const MarkedToken>> of_row(size_t row) const;
  std::span<const MarkedToken> operator[](size_t document) const;
  const Counts& counts() const { return counts_; }
  int64_t largest_id() const { return largest_id_; }
  const std::string& digest() const { return digest_; }  ///< SHA-256 of all tokens and marks

 private:
  friend Documents load_documents(const DocumentEncoder& encoder, const DocumentsOptions& options);
  friend Documents make_documents(std::span<const std::vector<MarkedToken>> documents);
  void append(const std::vector<MarkedToken>& tokens);

  std::vector<MarkedToken> tokens_;
  std::vector<uint64_t> ends_;
  Counts counts_;
  int64_t largest_id_ = 0;
  std::string digest_;
};

/// Reads, renders and tokenises rows on several threads; the result does not depend on their number.
/// UserError with file and line for a row that is refused, if it is not to be skipped; if nothing is left; if
/// nothing can be learned from.
Documents load_documents(const DocumentEncoder& encoder, const DocumentsOptions& options);

/// Documents of tokens that are there already, each a row of its own.
Documents make_documents(std::span<const std::vector<MarkedToken>> documents);

/// Do the names say that these paths are rows of data sets: files of known type, patterns, folders of nothing else?
bool are_records(const std::vector<std::string>& paths);

/// The inputs of a row's documents that fit into seq_len together (the last token of each is predicted alone): all if
/// they do, else no more of each than lets the longest of them fit.
std::vector<int64_t> inputs_within(int64_t seq_len,
                                   std::span<const std::span<const MarkedToken>> documents);

/// "1234 documents, 567890 tokens, 34 % of them learned; 2 rows left out: .."
std::string summary(const Counts& counts);

}  // namespace tessera::documents
