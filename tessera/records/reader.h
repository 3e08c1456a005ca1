// Rows of data sets, one JSON object each, from the files that people have (docs/data_files.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/records/file_type.h"
#include "tessera/records/row.h"

namespace tessera::records {

struct RecordOptions {
  /// Files, folders or patterns (find_files()), read in this order.
  std::vector<std::string> paths;
  /// Rows that are broken are counted, and not an error. What breaks a file is one still.
  bool skip_bad_lines = false;
  /// A longer row is broken. Memory follows the longest one.
  size_t max_row_bytes = size_t{256} << 20;
};

struct Record {
  Json value;        ///< an object
  size_t file = 0;   ///< into files()
  int64_t line = 0;  ///< on which it begins, from 1; in Parquet the row's number, from 1
};

/// Reads the rows of files one after the other. Memory: a row and some MB, whatever the size.
class RecordReader {
 public:
  /// Finds the files; UserError as find_files() says.
  explicit RecordReader(RecordOptions options);
  ~RecordReader();
  RecordReader(RecordReader&&) noexcept;
  RecordReader& operator=(RecordReader&&) noexcept;

  /// The next row; nothing behind the last. UserError: a row is broken ("chats.jsonl:12:34: ..") and
  /// skip_bad_lines is not set; a file is broken, was written to meanwhile, or has no row at all.
  std::optional<Record> next();

  const std::vector<DataFile>& files() const { return files_; }
  /// "chats.jsonl:12", in Parquet "chats.parquet: row 12".
  std::string place(const Record& record) const;

  int64_t num_skipped() const { return num_skipped_; }
  /// What was wrong with the first row that was skipped; "": none was.
  const std::string& first_skipped() const { return first_skipped_; }

 private:
  struct Open;

  RecordOptions options_;
  std::vector<DataFile> files_;
  size_t file_ = 0;             ///< that is open, or will be next
  int64_t rows_of_file_ = 0;    ///< broken ones included
  std::unique_ptr<Open> open_;  ///< nullptr: files_[file_] is to be opened
  int64_t num_skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace tessera::records
