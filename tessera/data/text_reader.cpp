#include "tessera/data/text_reader.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {

TextReader::TextReader(std::vector<TextFile> files, const text::Tokenizer* tokenizer,
                       TextPlace from, size_t part_bytes)
    : files_(std::move(files)), tokenizer_(tokenizer), at_(from), part_bytes_(part_bytes) {}

/// Reads on until `bytes` are ahead or the file ends.
void TextReader::fill(size_t bytes) {
  const auto& [path, num_bytes] = files_[at_.file];
  if (!is_open_) {
    file_ = std::ifstream(path, std::ios::binary);
    file_.seekg(at_.byte);
    if (!file_) user_error("{}: cannot be opened", path.string());
    is_open_ = true;
  }
  const auto left = static_cast<size_t>(num_bytes - at_.byte);
  const size_t before = ahead_.size(), wanted = std::min(bytes, left);
  if (wanted <= before) return;
  ahead_.resize(wanted);
  file_.read(ahead_.data() + before, static_cast<std::streamsize>(wanted - before));
  const auto got = static_cast<size_t>(file_.gcount());
  const bool grew = wanted == left && file_ && file_.peek() != std::ifstream::traits_type::eof();
  if (got != wanted - before || grew)
    user_error("{}: expected {} bytes, got {}; did it change meanwhile?", path.string(), num_bytes,
               grew ? "more" : "less");
}

text::TextCut TextReader::place_to_cut() {
  constexpr size_t kLookAhead = size_t{128} << 10;
  const auto left = static_cast<size_t>(files_[at_.file].num_bytes - at_.byte);
  if (tokenizer_ == nullptr) {
    fill(part_bytes_);
    return {std::min(part_bytes_, left), true};
  }
  for (size_t from = part_bytes_; from < left; from += part_bytes_) {
    fill(from + kLookAhead);
    if (const auto cut =
            text::place_to_cut(*tokenizer_, ahead_, from, {.find_special_tokens = false}))
      return *cut;
  }
  fill(left);
  return {left, false};
}

std::optional<TextPart> TextReader::next() {
  if (at_.file == files_.size()) return std::nullopt;
  const auto cut = place_to_cut();
  TextPart part{.text = ahead_.substr(0, cut.at), .continues = at_.continues, .next = {}};
  ahead_.erase(0, cut.at);
  at_.byte += static_cast<int64_t>(cut.at);
  part.ends = at_.byte == files_[at_.file].num_bytes;
  at_.continues = cut.continues && !part.ends;
  if (part.ends) {
    at_ = {at_.file + 1, 0, false};
    is_open_ = false;
  }
  part.next = at_;
  return part;
}

}  // namespace tessera::data
