// Unicode's normal forms, with where each character came from.
#pragma once

#include "tessera/text/cut_text.h"

namespace tessera::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// `text` in a normal form (Unicode Standard Annex 15). A character that others were composed into
/// stands for the first of them; all that one is decomposed into stand for it, in the order in which
/// they are left.
void to_normal_form(TrackedText& text, NormalForm form);

/// True if it is plain that `text` is in the form: all below U+0300 for NFC, ASCII for the others.
bool is_stable(std::string_view text, NormalForm form);

}  // namespace tessera::text
