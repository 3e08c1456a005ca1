// Tokens that are found in a text before its model sees it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tessera/text/cut_text.h"
#include "tessera/text/normalizer.h"
#include "tessera/text/piece_trie.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  std::string text;  ///< that it is decoded to: the content, normalized if that is asked for
  bool single_word = false;             ///< not within a word
  bool lstrip = false, rstrip = false;  ///< blanks before, behind it are part of it
  bool normalized =
      false;             ///< looked for, as the normalizer makes it, in what that makes of a text
  bool in_text = true;   ///< found in texts; false: only its id is known
  bool special = false;  ///< left out where special tokens are skipped
};

/// Finds added tokens in a text. Where several match, the one that begins first counts, then the longest.
class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer);

  const AddedToken* token_of(uint32_t id) const;
  const AddedToken* token_named(std::string_view content) const;
  /// Whether a special token has this content: a model may have it under a second id.
  bool is_special(std::string_view content) const { return special_.contains(content); }
  const std::vector<AddedToken>& all() const { return tokens_; }

  /// Cuts out those that are, or are not, `normalized`. Special ones are left as text where
  /// `options` says so.
  void cut(CutText& text, bool normalized, const EncodeOptions& options) const;

 private:
  /// Whether a special token that stands in bytes of a text is one.
  using IsSpecial = std::function<bool(size_t begin, size_t end)>;
  void find(std::string_view text, bool normalized, const IsSpecial& is_special,
            std::vector<Piece>& pieces) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint32_t, size_t> by_id_;
  std::unordered_set<std::string, StringHash, std::equal_to<>> special_;
  std::array<PieceTrie, 2> tries_;                 // not normalized, normalized; values: in tokens_
  std::array<std::array<bool, 256>, 2> begins_{};  // by which bytes a token begins
};

}  // namespace tessera::text
