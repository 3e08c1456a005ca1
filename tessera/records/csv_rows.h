// Rows of .csv and .tsv files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/records/row.h"
#include "tessera/records/text_input.h"

namespace tessera::records {

/// RFC 4180: the first record names the columns, each other is a row of texts. A quote that does
/// not open a field stands for itself, and empty lines are skipped. UserError: no or bad names.
class CsvRows {
 public:
  CsvRows(const std::filesystem::path& path, Compression compression, char separator,
          size_t max_row_bytes);

  NextRow next();

 private:
  std::string read_record();
  std::string read_field(size_t& at);
  std::optional<std::string> read_quoted_field(size_t& at);
  bool ends_field(size_t at);
  size_t end_of_line_at(size_t at);

  TextInput input_;
  char separator_;
  size_t max_row_bytes_;
  std::vector<std::string> names_;
  std::vector<std::string> fields_;  ///< of the last record that was read
};

}  // namespace tessera::records
