#include "tessera/records/csv_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/quoted.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera::records {

CsvRows::CsvRows(const std::filesystem::path& path, Compression compression, char separator,
                 size_t max_row_bytes)
    : input_(path, compression), separator_(separator), max_row_bytes_(max_row_bytes) {
  if (!input_.reach_beyond(0)) return;
  const auto error = read_record();
  if (!error.empty()) user_error("{}", error);
  names_ = fields_;
  auto sorted = names_;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end())
    user_error("{}:1: expected the names of the columns, each once, got {} twice", input_.name(),
               quoted(printable(*twice)));
}

NextRow CsvRows::next() {
  while (input_.reach_beyond(0)) {
    const auto place = input_.place();
    if (const auto end = end_of_line_at(0); end > 0) {
      input_.skip(end);
      continue;
    }
    auto error = read_record();
    if (error.empty() && fields_.size() != names_.size())
      error = input_.error_at(place, fmt::format("expected {} fields as in the first line, got {}",
                                                 names_.size(), fields_.size()));
    if (!error.empty()) return BadRow{std::move(error)};
    Json value = Json::object();
    auto& object = value.get_ref<Json::object_t&>();
    object.reserve(names_.size());
    for (size_t i = 0; i < names_.size(); ++i)
      object.emplace_back(names_[i], std::move(fields_[i]));
    return Row{std::move(value), place.line};
  }
  return std::nullopt;
}

/// The bytes of the line's end at `at`; 0 if there is none.
size_t CsvRows::end_of_line_at(size_t at) {
  if (!input_.reach_beyond(at)) return 0;
  if (input_.ahead()[at] == '\n') return 1;
  const bool both =
      input_.ahead()[at] == '\r' && input_.reach_beyond(at + 1) && input_.ahead()[at + 1] == '\n';
  return both ? 2 : 0;
}

bool CsvRows::ends_field(size_t at) {
  return !input_.reach_beyond(at) || input_.ahead()[at] == separator_ || end_of_line_at(at) > 0;
}

/// Reads the fields up to the record's end, or goes on behind the line of an error, which it says.
std::string CsvRows::read_record() {
  const auto place = input_.place();
  fields_.clear();
  std::string error;
  size_t at = 0;
  for (;;) {
    const bool is_quoted = input_.reach_beyond(at) && input_.ahead()[at] == '"';
    const size_t begin = at;
    auto field = is_quoted ? read_quoted_field(at) : read_field(at);
    const bool is_closed = field.has_value();
    fields_.push_back(std::move(field).value_or(""));
    const auto place_of = [&](size_t byte) {
      return place_behind(input_.ahead().substr(0, byte), place);
    };
    if (at > max_row_bytes_) {
      error = input_.error_at(
          place, fmt::format("expected a row of at most {} bytes, got a longer one; does a field "
                             "lack its closing quote?",
                             max_row_bytes_));
      at = begin;
    } else if (!is_closed) {
      error = input_.error_at(place_of(begin), "expected a closing quote, got the end of the file");
    } else if (is_quoted && !ends_field(at)) {
      error = input_.error_at(place_of(at),
                              "expected the field's end behind its closing quote, got more");
    } else if (!is_utf8(fields_.back())) {
      error = input_.error_at(place_of(begin), "expected UTF-8, got other bytes");
    } else if (fields_.back().find('\0') != std::string::npos) {
      error = input_.error_at(place_of(begin), "expected text, got a NUL byte");
    }
    if (!error.empty()) {
      input_.skip(at);
      input_.skip_line();
      return error;
    }
    if (!input_.reach_beyond(at)) break;
    if (const auto end = end_of_line_at(at); end > 0) {
      at += end;
      break;
    }
    ++at;  // the separator
  }
  input_.skip(at);
  return "";
}

std::string CsvRows::read_field(size_t& at) {
  const size_t begin = at;
  while (at <= max_row_bytes_ && !ends_field(at)) ++at;
  return std::string(input_.ahead().substr(begin, at - begin));
}

/// Nothing if the file, or what a row may have, ends before the closing quote.
std::optional<std::string> CsvRows::read_quoted_field(size_t& at) {
  std::string field;
  for (++at; at <= max_row_bytes_ && input_.reach_beyond(at); ++at) {
    const char c = input_.ahead()[at];
    if (c == '"') {
      ++at;
      if (!input_.reach_beyond(at) || input_.ahead()[at] != '"') return field;
    }
    field += c;
  }
  return std::nullopt;
}

}  // namespace tessera::records
