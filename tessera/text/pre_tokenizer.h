// How a tokenizer cuts a text into words: the `pre_tokenizer` of tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/text/cut_text.h"
#include "tessera/text/pattern.h"

namespace tessera::text {

/// What becomes of that which a cut finds.
enum class CutBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct ByteLevelCut {
  bool prefix_space = false;       ///< put one before each piece that has none
  std::optional<Pattern> pattern;  ///< GPT-2's
  bool map = true;                 ///< write bytes as GPT-2's letters; false: the model takes bytes
};
struct SplitCut {
  std::optional<Pattern> pattern;
  std::string literal;  ///< without a pattern
  CutBehavior behavior = CutBehavior::isolated;
  bool invert = false;
};
enum class CharacterClass { blank, punctuation, numeric };
struct ClassCut {
  CharacterClass characters = CharacterClass::blank;
  CutBehavior behavior = CutBehavior::removed;
};
struct WordCut {};  ///< runs of word characters, and runs of what is neither that nor blank
enum class Prepend { always, first, never };
struct MetaspaceCut {
  std::string mark = "\xE2\x96\x81";  ///< one character, written for a space
  Prepend prepend = Prepend::always;
  bool split = true;
};
struct ScriptCut {};  ///< where the script of the characters changes

using PreTokenizerStep =
    std::variant<ByteLevelCut, SplitCut, ClassCut, WordCut, MetaspaceCut, ScriptCut>;
using PreTokenizer = std::vector<PreTokenizerStep>;  ///< one after the other

/// `continues`: the text goes on from another one, so nothing is put before its first piece.
void apply(const PreTokenizerStep& step, CutText& text, bool continues);

/// The expression that ByteLevel cuts by.
std::string_view gpt2_pattern();

}  // namespace tessera::text
