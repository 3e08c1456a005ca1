#include "tessera/records/json_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/quoted.h"
#include "tessera/base/text.h"

namespace tessera::records {
namespace {

/// The row that `text` is, which begins at `place`.
NextRow row_of(const TextInput& input, std::string_view text, TextPlace place) {
  auto parsed = parse_row_json(text);
  if (!parsed.error.empty())
    return BadRow{input.error_at(place_behind(text.substr(0, parsed.byte), place), parsed.error)};
  if (!parsed.value.is_object())
    return BadRow{input.error_at(
        place, fmt::format("expected an object {{..}} for each row, got {} {}",
                           parsed.value.is_array() ? "an" : "a", parsed.value.type_name()))};
  return Row{std::move(parsed.value), place.line};
}

std::string too_long(size_t max_row_bytes) {
  return fmt::format("expected a row of at most {} bytes, got a longer one", max_row_bytes);
}

/// Finds where a JSON value ends by its brackets and quotes, part by part.
class ValueEnd {
 public:
  /// Is the end within `text`, of which a part was searched before? Then size() is there.
  bool find(std::string_view text) {
    for (; at_ < text.size(); ++at_) {
      const char c = text[at_];
      if (in_string_) {
        if (is_escaped_) {
          is_escaped_ = false;
        } else if (c == '\\') {
          is_escaped_ = true;
        } else if (c == '"') {
          in_string_ = false;
          if (depth_ == 0) return ends_behind();
        }
        continue;
      }
      if (c == '"' && (depth_ > 0 || at_ == 0)) {
        in_string_ = true;
      } else if ((c == '{' || c == '[') && (depth_ > 0 || at_ == 0)) {
        ++depth_;
      } else if (depth_ > 0) {
        if ((c == '}' || c == ']') && --depth_ == 0) return ends_behind();
      } else if (std::string_view(",]}: \t\r\n").find(c) != std::string_view::npos) {
        return true;
      }
    }
    return false;
  }

  size_t size() const { return at_; }
  bool is_whole_at_end() const { return depth_ == 0 && !in_string_; }

 private:
  bool ends_behind() {
    ++at_;
    return true;
  }

  size_t at_ = 0;
  int64_t depth_ = 0;
  bool in_string_ = false, is_escaped_ = false;
};

}  // namespace

NextRow JsonLines::next() {
  while (input_.skip_blanks()) {
    const auto place = input_.place();
    const size_t size = input_.line_bytes(max_row_bytes_);
    if (size > max_row_bytes_) {
      input_.skip_line();
      return BadRow{input_.error_at(place, too_long(max_row_bytes_))};
    }
    const auto text = input_.ahead().substr(0, size);
    auto row = row_of(input_, text, place);
    if (place.line == 1 && text.starts_with('[') && std::holds_alternative<BadRow>(*row))
      row = BadRow{input_.error_at(
          place,
          "expected an object {..} on each line, got a list; name a file that is one .json")};
    input_.skip_line();
    return row;
  }
  return std::nullopt;
}

JsonList::JsonList(const std::filesystem::path& path, Compression compression, size_t max_row_bytes)
    : input_(path, compression), max_row_bytes_(max_row_bytes) {
  if (!input_.skip_blanks()) {
    at_ = At::end;
  } else if (input_.ahead()[0] == '[') {
    input_.skip(1);
    at_ = At::first_item;
    found_list_ = true;
  } else if (input_.ahead()[0] != '{') {
    refuse("a list of objects, or an object that holds one");
  } else if (begins_json_lines()) {
    at_ = At::lines;
  } else {
    input_.skip(1);
    in_object_ = true;
    at_ = At::members;
  }
}

bool JsonList::begins_json_lines() {
  constexpr size_t kMostToLookAt = size_t{16} << 20;
  const size_t size = input_.line_bytes(std::min(kMostToLookAt, max_row_bytes_));
  const auto line = input_.ahead().substr(0, size);
  ValueEnd end;
  if (!end.find(line)) return false;
  const auto blank = [](std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == text.npos;
  };
  if (!blank(line.substr(end.size()))) return false;
  for (size_t seen = size; input_.reach_beyond(seen); seen = input_.ahead().size()) {
    if (!blank(input_.ahead().substr(seen))) return true;
  }
  return false;
}

NextRow JsonList::next() {
  if (at_ == At::lines) {
    if (!input_.skip_blanks()) return std::nullopt;
    const auto place = input_.place();
    const size_t size = input_.line_bytes(max_row_bytes_);
    auto row = size > max_row_bytes_
                   ? NextRow(BadRow{input_.error_at(place, too_long(max_row_bytes_))})
                   : row_of(input_, input_.ahead().substr(0, size), place);
    input_.skip_line();
    return row;
  }
  for (;;) {
    if (at_ == At::end) return std::nullopt;
    if (at_ == At::members) {
      find_list();
    } else if (auto row = next_item()) {
      return row;
    }
  }
}

/// Reads an object's members up to its next list of objects, or to its end.
void JsonList::find_list() {
  for (bool is_first = !found_list_;; is_first = false) {
    if (input_.skip_blanks() && input_.ahead()[0] == '}') {
      input_.skip(1);
      if (!found_list_)
        user_error(
            "{}: expected a list of objects, or an object that holds one, got an object without; "
            "if it is one row, name it .jsonl and write it on one line",
            input_.name());
      return end_of_file();
    }
    if (!is_first) expect(',', "between members");
    input_.skip_blanks();
    const auto key = parse_row_json(value_ahead());
    if (!key.error.empty() || !key.value.is_string()) refuse("a key");
    input_.skip(value_ahead().size());
    expect(':', "behind a key");
    if (!input_.skip_blanks()) refuse("a value");
    size_t first = 1;  // of what a list holds
    const auto is_blank = [&] {
      return std::string_view(" \t\r\n").find(input_.ahead()[first]) != std::string_view::npos;
    };
    while (input_.reach_beyond(first) && is_blank()) ++first;
    if (input_.ahead()[0] == '[' && input_.reach_beyond(first) && input_.ahead()[first] == '{') {
      if (found_list_)
        user_error("{}: expected one list of objects, got one more at line {}, {}", input_.name(),
                   input_.place().line, quoted(printable(key.value.get<std::string>())));
      input_.skip(1);
      found_list_ = true;
      at_ = At::first_item;
      return;
    }
    const auto value = value_ahead();
    const auto parsed = parse_row_json(value);
    if (!parsed.error.empty()) {
      const auto place = place_behind(value.substr(0, parsed.byte), input_.place());
      user_error("{}", input_.error_at(place, parsed.error));
    }
    input_.skip(value.size());
  }
}

NextRow JsonList::next_item() {
  const bool is_more = input_.skip_blanks();
  if (is_more && input_.ahead()[0] == ']') {
    input_.skip(1);
    at_ = At::members;
    if (!in_object_) end_of_file();
    return std::nullopt;
  }
  if (at_ == At::items) expect(',', "or ] behind a row");
  at_ = At::items;
  if (!input_.skip_blanks()) refuse("a row");
  const auto text = value_ahead();
  auto row = row_of(input_, text, input_.place());
  input_.skip(text.size());
  return row;
}

/// The value that comes next, as far as its brackets and quotes tell.
std::string_view JsonList::value_ahead() {
  ValueEnd end;
  while (!end.find(input_.ahead())) {
    if (end.size() > max_row_bytes_)
      user_error("{}", input_.error_at(input_.place(), too_long(max_row_bytes_)));
    if (input_.reach_beyond(end.size())) continue;
    if (end.is_whole_at_end() && end.size() > 0) break;
    user_error("{}", input_.error_at(input_.place(),
                                     "expected the end of what begins here, got the file's end"));
  }
  if (end.size() == 0) refuse("a value");
  if (end.size() > max_row_bytes_)
    user_error("{}", input_.error_at(input_.place(), too_long(max_row_bytes_)));
  return input_.ahead().substr(0, end.size());
}

void JsonList::end_of_file() {
  if (input_.skip_blanks()) refuse("the end of the file");
  at_ = At::end;
}

void JsonList::expect(char wanted, std::string_view where) {
  if (!input_.skip_blanks() || input_.ahead()[0] != wanted)
    refuse(fmt::format("{} {}", wanted, where));
  input_.skip(1);
}

void JsonList::refuse(std::string_view expected) {
  const auto text = input_.ahead().substr(0, 1);
  user_error("{}",
             input_.error_at(input_.place(), fmt::format("expected {}, got {}", expected,
                                                         text.empty() ? "the end of the file"
                                                                      : quoted(printable(text)))));
}

}  // namespace tessera::records
