// Rows of JSON lines and of .json files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/records/row.h"
#include "tessera/records/text_input.h"

namespace tessera::records {

/// An object on each line that is not blank.
class JsonLines {
 public:
  JsonLines(const std::filesystem::path& path, Compression compression, size_t max_row_bytes)
      : input_(path, compression), max_row_bytes_(max_row_bytes) {}

  NextRow next();

 private:
  TextInput input_;
  size_t max_row_bytes_;
};

/// The objects of the one list that a .json file is, or that the object holds which it is. JSON
/// lines are taken, too: they are told by a first line that is a whole object, and one more behind
/// it. UserError: the file is something else, or its list breaks off. Memory: a row, or the first
/// 16 MiB of what could be JSON lines.
class JsonList {
 public:
  JsonList(const std::filesystem::path& path, Compression compression, size_t max_row_bytes);

  NextRow next();

 private:
  enum class At { outside, members, first_item, items, lines, end };

  bool begins_json_lines();
  void find_list();
  NextRow next_item();
  std::string_view value_ahead();
  void end_of_file();
  void expect(char wanted, std::string_view where);
  [[noreturn]] void refuse(std::string_view expected);

  TextInput input_;
  size_t max_row_bytes_;
  At at_ = At::outside;
  bool in_object_ = false, found_list_ = false;
};

}  // namespace tessera::records
