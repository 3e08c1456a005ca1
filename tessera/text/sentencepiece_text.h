// What a SentencePiece model does to a text before it cuts it.
#pragma once

#include <optional>

#include "tessera/text/character_map.h"
#include "tessera/text/cut_text.h"
#include "tessera/text/piece_trie.h"

namespace tessera::text {

struct SentencePieceText {
  std::optional<CharacterMap> map;  ///< the longest match at each place is replaced
  bool dummy_prefix = true;         ///< a space before the text
  bool suffix = false;              ///< that stands behind it instead
  bool remove_extra_blanks = true;  ///< at both ends, and of several all but one
  bool escape_blanks = true;        ///< U+2581 for a space
  PieceTrie whole_symbols;          ///< left as they are
};

/// `continues`: the text goes on from another one, so nothing is put before it.
void apply(const SentencePieceText& step, TrackedText& text, bool continues);

}  // namespace tessera::text
