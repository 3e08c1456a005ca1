// Rows of .parquet files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/input_file.h"
#include "tessera/records/parquet/column.h"
#include "tessera/records/parquet/schema.h"
#include "tessera/records/row.h"

namespace tessera::records {

/// A row is an object with a member for each column. Memory: a row, and a page and a dictionary of
/// each column. UserError: the file is damaged, or has what is not read.
class ParquetRows {
 public:
  /// A row is broken that is larger, measured as JSON in memory; so is the file with such a page.
  struct Limits {
    size_t row_bytes;
    size_t page_bytes = (size_t{1} << 31) - 1;
  };

  ParquetRows(const std::filesystem::path& path, Limits limits);

  NextRow next();

 private:
  bool begin_row_group();
  Json read(const parquet::Node& node, int rep);
  Json read_value(const parquet::Node& node, int rep);
  Json read_list(const parquet::Node& node, int rep);
  Json read_map(const parquet::Node& node, int rep);
  void skip_null(const parquet::Node& node, int rep);
  parquet::ColumnReader& first_column(const parquet::Node& node) { return *columns_[node.column]; }
  void check_rep(const parquet::ColumnReader& column, int rep) const;
  void take(size_t bytes);
  void note_error(const parquet::Node& node, std::string_view error);

  InputFile file_;
  std::string name_;
  Limits limits_;
  parquet::Metadata metadata_;
  std::vector<const parquet::Node*> leaves_;
  size_t row_group_ = 0;  ///< the next one
  int64_t left_ = 0, row_ = 0;
  std::vector<std::unique_ptr<parquet::ColumnReader>> columns_;
  std::string error_;  ///< of the row
  size_t row_bytes_ = 0;
};

}  // namespace tessera::records
