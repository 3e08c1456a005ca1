// Scripts, as the pre-tokenizer UnicodeScripts tells them apart.
#pragma once

namespace tessera::text {

inline constexpr int kAnyScript = -1;

/// A number for the script of a character, the same for all of a script. kAnyScript: a space, and what
/// has no script, which go with every one. Hiragana, Katakana and the sign that lengthens a vowel count as Han.
int script_of(char32_t code);

}  // namespace tessera::text
