// A column of a row group, value by value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/input_file.h"
#include "tessera/records/parquet/encodings.h"
#include "tessera/records/parquet/schema.h"

namespace tessera::records::parquet {

/// Stands at a value, or at a null or empty list that stands for one. Memory: a page, its dictionary
/// and 64 KiB.
class ColumnReader {
 public:
  /// `file` and `leaf` must outlive it. A page larger than `max_page_bytes` is refused.
  ColumnReader(const InputFile& file, const Node& leaf, const ColumnChunk& chunk,
               size_t max_page_bytes);
  ColumnReader(const ColumnReader&) = delete;
  ColumnReader& operator=(const ColumnReader&) = delete;

  bool is_at_end() const { return left_in_chunk_ == 0; }
  int rep() const { return rep_; }  ///< 0 at the end
  int def() const { return def_; }
  const Node& leaf() const { return leaf_; }

  /// If def() is that of a value: it stays until advance().
  std::string_view value() { return values_(); }
  void advance();

 private:
  void read_levels();
  bool read_page();
  void read_dictionary(const Thrift& header, std::string_view packed, size_t bytes);
  void begin_page(const Thrift& header, std::string_view packed, size_t bytes);
  void begin_page_v2(const Thrift& header, std::string_view packed, size_t bytes);
  std::string_view reach(size_t bytes);
  std::string_view plain(std::string_view packed, size_t bytes, std::string& storage) const;

  const InputFile& file_;
  std::string name_;
  const Node& leaf_;
  int64_t codec_;
  size_t max_page_bytes_;
  uint64_t at_, end_;      ///< of what has not been read, in the file
  std::string window_;     ///< what has been read
  size_t window_at_ = 0;   ///< of what comes next
  int64_t left_in_chunk_;  ///< values, the one at which it stands included
  int64_t left_in_page_ = 0;
  int rep_ = 0, def_ = 0;
  bool has_dictionary_ = false;
  std::string dictionary_text_, page_;
  std::vector<std::string_view> dictionary_;
  RunReader reps_, defs_;
  NextValue values_;
};

}  // namespace tessera::records::parquet
