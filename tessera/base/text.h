// Text that others wrote, on its way to a terminal or into a file.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// Whether line feeds and tabs may stay.
enum class LineBreaks { escaped, kept };

/// `text` as it can be shown without an effect beside being read: control characters (escape
/// sequences of a terminal begin with one), marks that change the direction of writing, and bytes
/// that are no UTF-8 become "\x1b", a byte each. All else stays.
std::string printable(std::string_view text, LineBreaks line_breaks = LineBreaks::escaped);

}  // namespace tessera
