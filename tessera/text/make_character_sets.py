"""Writes character_sets.cpp: which characters the `tokenizers` package takes for marks, punctuation and so on, found by asking it about
each one. Its tables are of several versions of Unicode, the oldest of 2015, and models were trained with what they say.

usage: make_character_sets.py > character_sets.cpp, then clang-format"""
from tokenizers import __version__, normalizers, pre_tokenizers

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def dropped_by(normalizer):
    return {code for code in CODES if not normalizer.normalize_str(chr(code))}


def bert(**options):
    return normalizers.BertNormalizer(**({"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False} | options))


def cut_by(pre_tokenizer):
    return {code for code in CODES if len(pre_tokenizer.pre_tokenize_str("a" + chr(code))) == 2}


def reordered():
    """Characters with a combining class: one that goes before another's or lets it go before."""
    others = [chr(code) for code in (0x334, 0x3099, 0x94D, 0x5B0, 0x5B2, 0x64B, 0x321, 0x316, 0x302E, 0x1DCE, 0x301, 0x35C, 0x345)]
    form = normalizers.NFD()
    return {code for code in CODES if code >= 0x300 and form.normalize_str(chr(code)) == chr(code)
            and any(form.normalize_str("a" + pair) != "a" + pair for other in others for pair in (chr(code) + other, other + chr(code)))}


form = normalizers.NFKD()
SETS = {
    "kControls": ("dropped by BertNormalizer's clean_text, with U+0000 and U+FFFD", dropped_by(bert(clean_text=True))),
    "kNonspacingMarks": ("dropped by its strip_accents", dropped_by(bert(strip_accents=True))),
    "kMarks": ("dropped by StripAccents", dropped_by(normalizers.StripAccents())),
    "kPunctuation": ("cut off by Punctuation", cut_by(pre_tokenizers.Punctuation("isolated"))),
    "kDecomposed": ("changed by NFKD", {code for code in CODES if form.normalize_str(chr(code)) != chr(code)}),
    "kOfAScript": ("that UnicodeScripts knows", {code for code in CODES if pre_tokenizers.UnicodeScripts().pre_tokenize_str(chr(code))}),
    "kReordered": ("of a combining class", reordered()),
}

print(f"// Made by make_character_sets.py with tokenizers {__version__}.\n"
      "#include \"tessera/text/character_sets.h\"\n\n#include <algorithm>\n#include <span>\n\nnamespace tessera::text {\nnamespace {\n\n"
      "struct CodeRange {\n  char32_t first, last;\n};\n\n// clang-format off")
for name, (what, codes) in SETS.items():
    ranges = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    print(f"\n// {what}\nconstexpr CodeRange {name}[] = {{")
    line = "   "
    for first, last in ranges:
        entry = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line + entry) > 100:
            print(line)
            line = "   "
        line += entry
    print(line + "\n};")
print("""// clang-format on

bool holds(std::span<const CodeRange> set, char32_t code) {
  const auto behind = std::upper_bound(set.begin(), set.end(), code, [](char32_t each, const CodeRange& range) { return each < range.first; });
  return behind != set.begin() && code <= (behind - 1)->last;
}

}  // namespace

bool is_control(char32_t code) { return holds(kControls, code); }
bool is_nonspacing_mark(char32_t code) { return holds(kNonspacingMarks, code); }
bool is_mark(char32_t code) { return holds(kMarks, code); }
bool is_punctuation(char32_t code) { return holds(kPunctuation, code); }
bool is_decomposed(char32_t code) { return holds(kDecomposed, code); }
bool has_script(char32_t code) { return holds(kOfAScript, code); }
bool is_reordered(char32_t code) { return holds(kReordered, code); }

}  // namespace tessera::text""")
