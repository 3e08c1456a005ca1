// What a tokenizer does to a text before it cuts it: the `normalizer` of tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/text/character_map.h"
#include "tessera/text/cut_text.h"
#include "tessera/text/normal_form.h"
#include "tessera/text/pattern.h"

namespace tessera::text {

struct LowerCase {};
struct StripAccents {};  ///< drops all marks
struct NmtCleaning {};   ///< drops controls; other blanks become spaces
struct StripBlanks {
  bool left = true, right = true;
};
struct ReplaceText {
  std::string literal;  ///< what is replaced, unless `pattern`
  std::optional<Pattern> pattern;
  std::string content;
};
struct PrependText {
  std::string content;
};
struct BertCleaning {
  bool clean_text = true, chinese_characters = true, strip_accents = true, lowercase = true;
};
struct MapBytes {};  ///< each byte becomes the character that GPT-2 writes it as

using NormalizerStep = std::variant<NormalForm, LowerCase, StripAccents, NmtCleaning, StripBlanks,
                                    ReplaceText, PrependText, BertCleaning, MapBytes, CharacterMap>;
using Normalizer = std::vector<NormalizerStep>;  ///< one after the other

void apply(const NormalizerStep& step, TrackedText& text);
/// True if the step leaves `text` as it is; false if it may not.
bool leaves_alone(const NormalizerStep& step, std::string_view text);

/// Replaces what `pattern` or, without one, `literal` finds; what is put there stands for the last
/// character that was found.
void replace_in(TrackedText& text, const ReplaceText& replace);
/// Puts `content` before the first character, which it stands for; an empty text stays empty.
void prepend_to(TrackedText& text, std::string_view content);
void map_bytes(TrackedText& text);

/// The character that GPT-2's files have for a byte, and back: -1 for other characters.
char32_t letter_of_byte(uint8_t byte);
int byte_of_letter(char32_t letter);

}  // namespace tessera::text
