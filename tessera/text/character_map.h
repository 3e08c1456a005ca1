// The replacements that a SentencePiece model brings with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/cut_text.h"

namespace tessera::text {

/// A `precompiled_charsmap`: uint32 bytes of a trie, the trie (a double array of Darts-clone: uint32
/// units), then texts that end in NUL, at which the trie's values point.
class CharacterMap {
 public:
  /// UserError, which begins with `where`, if the bytes are none.
  CharacterMap(const std::string& where, std::string_view bytes);

  struct Found {
    size_t bytes = 0;  ///< of the text, 0: nothing was found
    std::string_view replacement;
  };
  Found shortest(std::string_view text) const;  ///< what `text` begins with
  Found longest(std::string_view text) const;

 private:
  Found find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

/// Like the `tokenizers` library: a cluster of characters (Unicode Standard Annex 29) of less
/// than six bytes is looked up whole, then each character by itself.
void apply_by_clusters(const CharacterMap& map, TrackedText& text);

}  // namespace tessera::text
