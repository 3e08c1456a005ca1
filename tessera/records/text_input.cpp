#include "tessera/records/text_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/utf8.h"

namespace tessera::records {

TextPlace place_behind(std::string_view text, TextPlace from) {
  const auto last = text.rfind('\n');
  if (last != text.npos) {
    from.line += std::count(text.begin(), text.end(), '\n');
    from.column = 1;
    text.remove_prefix(last + 1);
  }
  from.column += static_cast<int64_t>(num_characters(text));
  return from;
}

TextInput::TextInput(const std::filesystem::path& path, Compression compression)
    : bytes_(path, compression) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  reach_beyond(kByteOrderMark.size());
  if (ahead().starts_with(kByteOrderMark)) begin_ = kByteOrderMark.size();
}

bool TextInput::reach_beyond(size_t bytes) {
  constexpr size_t kPartBytes = size_t{128} << 10;
  while (buffer_.size() - begin_ <= bytes && !at_end_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    const size_t before = buffer_.size();
    buffer_.resize(before + kPartBytes);
    const size_t got = bytes_.read({buffer_.data() + before, kPartBytes});
    buffer_.resize(before + got);
    at_end_ = got == 0;
  }
  return buffer_.size() - begin_ > bytes;
}

void TextInput::skip(size_t bytes) {
  place_ = place_behind(ahead().substr(0, bytes), place_);
  begin_ += bytes;
}

bool TextInput::skip_blanks() {
  while (reach_beyond(0)) {
    const auto text = ahead();
    const auto blanks = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    skip(blanks);
    if (blanks < text.size()) return true;
  }
  return false;
}

size_t TextInput::line_bytes(size_t most) {
  for (size_t searched = 0;;) {
    const auto end = ahead().find('\n', searched);
    if (end != std::string_view::npos) return std::min(end, most + 1);
    searched = ahead().size();
    if (searched > most) return most + 1;
    if (!reach_beyond(searched)) return searched;
  }
}

void TextInput::skip_line() {
  while (reach_beyond(0)) {
    const auto end = ahead().find('\n');
    skip(std::min(end, ahead().size() - 1) + 1);
    if (end != std::string_view::npos) return;
  }
}

std::string TextInput::error_at(TextPlace place, std::string_view text) const {
  return fmt::format("{}:{}:{}: {}", name(), place.line, place.column, text);
}

}  // namespace tessera::records
