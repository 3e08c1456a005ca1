// Sets of characters as the `tokenizers` library knows them (make_character_sets.py asks it), so that results depend on no other version of
// Unicode. Characters that came later are in none.
#pragma once

namespace tessera::text {

bool is_control(char32_t code);  ///< controls, formats, private use; U+0000, U+FFFD; no line ends
bool is_nonspacing_mark(char32_t code);  ///< as BERT's cleaning has it
bool is_mark(char32_t code);
bool is_punctuation(char32_t code);  ///< ASCII's punctuation and symbols, and the categories P*
bool is_decomposed(char32_t code);   ///< has a decomposition, canonical or compatible
bool has_script(char32_t code);
bool is_reordered(char32_t code);  ///< has a combining class

}  // namespace tessera::text
