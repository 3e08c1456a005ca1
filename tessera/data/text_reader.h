// Texts in parts that can be encoded one by one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizer.h"

namespace tessera::data {

struct TextFile {
  std::filesystem::path path;
  int64_t num_bytes = 0;
};

/// Where a part begins. `continues`: it goes on from the one before it (EncodeOptions).
struct TextPlace {
  size_t file = 0;  ///< into the list of files
  int64_t byte = 0;
  bool continues = false;
};

struct TextPart {
  std::string text;
  bool continues = false;
  bool ends = false;  ///< the last of its file
  TextPlace next;     ///< of what is behind it
};

/// Reads texts in order. Memory: a few parts, whatever the size, as long as the texts have a blank
/// between words now and then; what has none is one part.
class TextReader {
 public:
  /// `tokenizer`: parts are cut where its tokens stay the same; nullptr: anywhere.
  TextReader(std::vector<TextFile> files, const text::Tokenizer* tokenizer, TextPlace from,
             size_t part_bytes = size_t{1} << 20);

  /// UserError: a file cannot be read, or has another size than in the list.
  std::optional<TextPart> next();

 private:
  void fill(size_t bytes);
  text::TextCut place_to_cut();

  std::vector<TextFile> files_;
  const text::Tokenizer* tokenizer_;
  TextPlace at_;
  size_t part_bytes_;
  std::ifstream file_;
  bool is_open_ = false;
  std::string ahead_;  ///< read, and not yet given out
};

}  // namespace tessera::data
