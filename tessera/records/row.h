// What a file of rows gives, one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace tessera::records {

using Json = nlohmann::ordered_json;

struct Row {
  Json value;        ///< an object
  int64_t line = 0;  ///< on which it begins, from 1; in Parquet the row's number, from 1
};

/// A row that is broken; the next one can be read.
struct BadRow {
  std::string message;  ///< with file, line and column
};

/// Nothing: the file's end.
using NextRow = std::optional<std::variant<Row, BadRow>>;

/// A text as JSON, or why it is none.
struct ParsedJson {
  Json value;
  std::string error;  ///< "": none
  size_t byte = 0;    ///< of the text, where the error is
};

/// One JSON value in UTF-8 (RFC 8259), blanks around it. An error: whatever is none, a key that an
/// object has twice, half of a surrogate pair ("\ud800": no text can hold it), a number that no
/// double holds, more than 64 levels. Cost: that of the text's length.
ParsedJson parse_row_json(std::string_view text);

}  // namespace tessera::records
