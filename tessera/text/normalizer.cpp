#include "tessera/text/normalizer.h"

#include <array>

#include "tessera/text/character_sets.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// Calls `change(code, origin, changed)` for each character; what it puts is the new text.
template <typename Change>
void each_character(TrackedText& text, const Change& change) {
  TrackedText changed;
  changed.tracked = text.tracked;
  changed.text.reserve(text.text.size());
  for (size_t at = 0; at < text.text.size();) {
    const auto character = character_at(text.text, at);
    change(character.code, text.origin_of(at), changed);
    at += character.bytes;
  }
  text = std::move(changed);
}

template <typename Keep>
void keep_characters(TrackedText& text, const Keep& keep) {
  each_character(text, [&](char32_t code, Range origin, TrackedText& changed) {
    if (keep(code)) changed.put(code, origin);
  });
}

void lower(TrackedText& text) {
  std::u32string letters;
  each_character(text, [&](char32_t code, Range origin, TrackedText& changed) {
    letters.clear();
    append_lower(letters, code);
    for (const char32_t letter : letters) changed.put(letter, origin);
  });
}

void strip(TrackedText& text, const StripBlanks& sides) {
  size_t begin = 0, end = text.text.size();
  while (sides.left && begin < end) {
    const auto character = character_at(text.text, begin);
    if (!is_white_space(character.code)) break;
    begin += character.bytes;
  }
  while (sides.right && begin < end) {
    size_t last = end - 1;
    while ((static_cast<uint8_t>(text.text[last]) & 0xC0) == 0x80) --last;
    if (!is_white_space(character_at(text.text, last).code)) break;
    end = last;
  }
  text.text = text.text.substr(begin, end - begin);
  if (text.tracked) {
    text.origin = {text.origin.begin() + static_cast<std::ptrdiff_t>(begin),
                   text.origin.begin() + static_cast<std::ptrdiff_t>(end)};
  }
}

void clean_nmt(TrackedText& text) {
  const auto drops = [](char32_t code) {
    return (code >= 1 && code <= 8) || code == 0xB || (code >= 0xE && code <= 0x1F) ||
           code == 0x7F || code == 0x8F || code == 0x9F;
  };
  const auto blank = [](char32_t code) {
    return code == 9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
           (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
           code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
  };
  each_character(text, [&](char32_t code, Range origin, TrackedText& changed) {
    if (!drops(code)) changed.put(blank(code) ? U' ' : code, origin);
  });
}

bool is_chinese(char32_t code) {
  constexpr std::array<std::array<char32_t, 2>, 8> kRanges{{{0x4E00, 0x9FFF},
                                                            {0x3400, 0x4DBF},
                                                            {0x20000, 0x2A6DF},
                                                            {0x2A700, 0x2B73F},
                                                            {0x2B740, 0x2B81F},
                                                            {0x2B920, 0x2CEAF},
                                                            {0xF900, 0xFAFF},
                                                            {0x2F800, 0x2FA1F}}};
  for (const auto& [first, last] : kRanges) {
    if (code >= first && code <= last) return true;
  }
  return false;
}

void clean_bert(TrackedText& text, const BertCleaning& bert) {
  if (bert.clean_text) {
    each_character(text, [](char32_t code, Range origin, TrackedText& changed) {
      if (is_control(code)) return;
      changed.put(is_white_space(code) ? U' ' : code, origin);
    });
  }
  if (bert.chinese_characters) {
    each_character(text, [](char32_t code, Range origin, TrackedText& changed) {
      const bool alone = is_chinese(code);
      if (alone) changed.put(U' ', origin);
      changed.put(code, origin);
      if (alone) changed.put(U' ', origin);
    });
  }
  if (bert.strip_accents) {
    to_normal_form(text, NormalForm::nfd);
    keep_characters(text, [](char32_t code) { return !is_nonspacing_mark(code); });
  }
  if (bert.lowercase) lower(text);
}

}  // namespace

void replace_in(TrackedText& text, const ReplaceText& replace) {
  std::vector<Range> found;
  if (replace.pattern) {
    replace.pattern->find_all(text.text, found);
  } else if (!replace.literal.empty()) {
    const auto bytes = replace.literal.size();
    for (size_t at = text.text.find(replace.literal); at != std::string::npos;
         at = text.text.find(replace.literal, at + bytes)) {
      found.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + bytes)});
    }
  }
  if (found.empty()) return;
  TrackedText changed;
  changed.tracked = text.tracked;
  size_t at = 0;
  const auto keep_to = [&](size_t end) {
    changed.text.append(text.text, at, end - at);
    if (text.tracked) {
      changed.origin.insert(changed.origin.end(),
                            text.origin.begin() + static_cast<std::ptrdiff_t>(at),
                            text.origin.begin() + static_cast<std::ptrdiff_t>(end));
    }
  };
  for (const auto& each : found) {
    keep_to(each.begin);
    changed.put(replace.content, text.origin_of(each.end - 1));
    at = each.end;
  }
  keep_to(text.text.size());
  text = std::move(changed);
}

void prepend_to(TrackedText& text, std::string_view content) {
  if (text.text.empty()) return;
  text.text.insert(0, content);
  if (text.tracked) text.origin.insert(text.origin.begin(), content.size(), Range(text.origin[0]));
}

void map_bytes(TrackedText& text) {
  TrackedText changed;
  changed.tracked = text.tracked;
  changed.text.reserve(text.text.size() * 2);
  for (size_t i = 0; i < text.text.size(); ++i)
    changed.put(letter_of_byte(static_cast<uint8_t>(text.text[i])), text.origin_of(i));
  text = std::move(changed);
}

// Bytes that are visible characters of Latin-1 stand for themselves, the others for U+0100 and on.
char32_t letter_of_byte(uint8_t byte) {
  static const auto letters = [] {
    std::array<char32_t, 256> made{};
    char32_t next = 256;
    for (char32_t i = 0; i < 256; ++i) {
      const bool visible = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE;
      made[i] = visible ? i : next++;
    }
    return made;
  }();
  return letters[byte];
}

int byte_of_letter(char32_t letter) {
  static const auto bytes = [] {
    std::array<int16_t, 324> made{};
    made.fill(-1);
    for (int i = 0; i < 256; ++i)
      made[letter_of_byte(static_cast<uint8_t>(i))] = static_cast<int16_t>(i);
    return made;
  }();
  return letter < bytes.size() ? bytes[letter] : -1;
}

void apply(const NormalizerStep& step, TrackedText& text) {
  struct Visitor {
    TrackedText& text;
    void operator()(NormalForm form) const { to_normal_form(text, form); }
    void operator()(const LowerCase&) const { lower(text); }
    void operator()(const StripAccents&) const {
      keep_characters(text, [](char32_t code) { return !is_mark(code); });
    }
    void operator()(const NmtCleaning&) const { clean_nmt(text); }
    void operator()(const StripBlanks& sides) const { strip(text, sides); }
    void operator()(const ReplaceText& replace) const { replace_in(text, replace); }
    void operator()(const PrependText& prepend) const { prepend_to(text, prepend.content); }
    void operator()(const BertCleaning& bert) const { clean_bert(text, bert); }
    void operator()(const MapBytes&) const { map_bytes(text); }
    void operator()(const CharacterMap& map) const { apply_by_clusters(map, text); }
  };
  std::visit(Visitor{text}, step);
}

bool leaves_alone(const NormalizerStep& step, std::string_view text) {
  const auto* form = std::get_if<NormalForm>(&step);
  return form != nullptr && is_stable(text, *form);
}

}  // namespace tessera::text
