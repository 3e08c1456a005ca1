#include "tessera/records/reader.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "tessera/base/error.h"
#include "tessera/records/csv_rows.h"
#include "tessera/records/json_rows.h"
#include "tessera/records/parquet_rows.h"

namespace tessera::records {

struct RecordReader::Open {
  Open(const DataFile& file, const RecordOptions& options) {
    const auto& [path, type] = file;
    switch (type.format) {
      case Format::json_lines:
        rows.emplace<JsonLines>(path, type.compression, options.max_row_bytes);
        return;
      case Format::json:
        rows.emplace<JsonList>(path, type.compression, options.max_row_bytes);
        return;
      case Format::csv:
        rows.emplace<CsvRows>(path, type.compression, ',', options.max_row_bytes);
        return;
      case Format::tsv:
        rows.emplace<CsvRows>(path, type.compression, '\t', options.max_row_bytes);
        return;
      case Format::parquet:
        rows.emplace<ParquetRows>(path, ParquetRows::Limits{.row_bytes = options.max_row_bytes});
    }
  }

  NextRow next() {
    return std::visit(
        [](auto& reader) -> NextRow {
          if constexpr (std::is_same_v<decltype(reader), std::monostate&>) {
            return std::nullopt;
          } else {
            return reader.next();
          }
        },
        rows);
  }

  std::variant<std::monostate, JsonLines, JsonList, CsvRows, ParquetRows> rows;
};

RecordReader::RecordReader(RecordOptions options) : options_(std::move(options)) {
  for (const auto& path : options_.paths) {
    auto found = find_files(path);
    files_.insert(files_.end(), found.begin(), found.end());
  }
}

RecordReader::~RecordReader() = default;
RecordReader::RecordReader(RecordReader&&) noexcept = default;
RecordReader& RecordReader::operator=(RecordReader&&) noexcept = default;

std::optional<Record> RecordReader::next() {
  while (file_ < files_.size()) {
    if (open_ == nullptr) {
      open_ = std::make_unique<Open>(files_[file_], options_);
      rows_of_file_ = 0;
    }
    auto next = open_->next();
    if (!next) {
      if (rows_of_file_ == 0)
        user_error("{}: expected rows, got a file with none", files_[file_].path.string());
      open_.reset();
      ++file_;
      continue;
    }
    ++rows_of_file_;
    if (auto* row = std::get_if<Row>(&*next))
      return Record{std::move(row->value), file_, row->line};
    auto& bad = std::get<BadRow>(*next);
    if (!options_.skip_bad_lines) throw UserError(bad.message);
    if (num_skipped_++ == 0) first_skipped_ = std::move(bad.message);
  }
  return std::nullopt;
}

std::string RecordReader::place(const Record& record) const {
  const auto& [path, type] = files_.at(record.file);
  const char* before = type.format == Format::parquet ? ": row " : ":";
  return fmt::format("{}{}{}", path.string(), before, record.line);
}

}  // namespace tessera::records
