// Text of which a window is in memory, with the line and column of what comes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/records/plain_bytes.h"

namespace tessera::records {

/// A place in a text: both from 1; a column is a character.
struct TextPlace {
  int64_t line = 1;
  int64_t column = 1;
};

/// The place behind `text`, which begins at `from`.
TextPlace place_behind(std::string_view text, TextPlace from);

/// A mark of byte order at the beginning is skipped.
class TextInput {
 public:
  TextInput(const std::filesystem::path& path, Compression compression);

  /// What is in memory of what comes next.
  std::string_view ahead() const { return std::string_view(buffer_).substr(begin_); }
  /// Reads until there are more than `bytes` ahead; false if the text ends before.
  bool reach_beyond(size_t bytes);
  /// Goes on behind the first `bytes` of ahead().
  void skip(size_t bytes);
  /// Goes on behind blanks; false if the text ends there.
  bool skip_blanks();
  /// The bytes until the end of the line ahead, without its "\n", or `most` + 1 if it is longer.
  size_t line_bytes(size_t most);
  /// Goes on behind the line's end.
  void skip_line();

  TextPlace place() const { return place_; }
  std::string name() const { return bytes_.path().string(); }
  /// "NAME:LINE:COLUMN: TEXT".
  std::string error_at(TextPlace place, std::string_view text) const;

 private:
  PlainBytes bytes_;
  std::string buffer_;
  size_t begin_ = 0;
  bool at_end_ = false;
  TextPlace place_;
};

}  // namespace tessera::records
