#include "tessera/text/pre_tokenizer.h"

#include "tessera/text/character_sets.h"
#include "tessera/text/normalizer.h"
#include "tessera/text/script.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// A part of a text, found or between what was found.
struct Part {
  Range range;
  bool found = false;
};

/// `matches` and what stands between them.
std::vector<Part> with_gaps(const std::vector<Range>& matches, size_t bytes, bool invert) {
  std::vector<Part> parts;
  parts.reserve(matches.size() * 2 + 1);
  uint32_t at = 0;
  for (const auto& match : matches) {
    if (at < match.begin) parts.push_back({{at, match.begin}, invert});
    parts.push_back({match, !invert});
    at = match.end;
  }
  if (at < bytes) parts.push_back({{at, static_cast<uint32_t>(bytes)}, invert});
  return parts;
}

void merge_with_next(const std::vector<Part>& parts, std::vector<Piece>& pieces) {
  std::vector<Piece> from_behind;
  bool last_found = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->found && !last_found && !from_behind.empty()) {
      from_behind.back().range.begin = part->range.begin;
    } else {
      from_behind.push_back({part->range});
    }
    last_found = part->found;
  }
  pieces.insert(pieces.end(), from_behind.rbegin(), from_behind.rend());
}

void put_parts(const std::vector<Part>& parts, CutBehavior behavior, std::vector<Piece>& pieces) {
  if (behavior == CutBehavior::merged_with_next) return merge_with_next(parts, pieces);
  bool last_found = false;
  for (const auto& part : parts) {
    const bool joins =
        (behavior == CutBehavior::merged_with_previous && part.found && !last_found) ||
        (behavior == CutBehavior::contiguous && part.found == last_found);
    if (behavior == CutBehavior::removed) {
      if (!part.found) pieces.push_back({part.range});
    } else if (joins && !pieces.empty()) {
      pieces.back().range.end = part.range.end;
    } else {
      pieces.push_back({part.range});
    }
    last_found = part.found;
  }
}

void find_literal(std::string_view text, std::string_view literal, std::vector<Range>& found) {
  for (size_t at = text.find(literal); at != text.npos;
       at = text.find(literal, at + literal.size()))
    found.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal.size())});
}

template <typename Is>
void find_characters(std::string_view text, const Is& is, std::vector<Range>& found) {
  for (uint32_t at = 0; at < text.size();) {
    const auto character = character_at(text, at);
    if (is(character.code)) found.push_back({at, at + character.bytes});
    at += character.bytes;
  }
}

/// Cuts by a pattern into all that it matches and all between.
void isolate(CutText& text, const Pattern& pattern) {
  std::vector<Range> matches;
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    matches.clear();
    pattern.find_all(piece, matches);
    uint32_t at = 0;
    for (const auto& match : matches) {
      if (at < match.begin) pieces.push_back({{at, match.begin}});
      pieces.push_back({match});
      at = match.end;
    }
    pieces.push_back({{at, static_cast<uint32_t>(piece.size())}});
  });
}

void cut(const ByteLevelCut& step, CutText& text, bool continues) {
  if (step.prefix_space) {
    text.rewrite([&](TrackedText& part, bool first) {
      if (!part.text.starts_with(' ') && !(first && continues)) prepend_to(part, " ");
    });
  }
  if (step.pattern) isolate(text, *step.pattern);
  if (step.map) text.rewrite([](TrackedText& part, bool) { map_bytes(part); });
}

void cut(const SplitCut& step, CutText& text, bool) {
  if (step.pattern && step.behavior == CutBehavior::isolated) return isolate(text, *step.pattern);
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    std::vector<Range> found;
    if (step.pattern) {
      step.pattern->find_all(piece, found);
    } else {
      find_literal(piece, step.literal, found);
    }
    put_parts(with_gaps(found, piece.size(), step.invert), step.behavior, pieces);
  });
}

void cut(const ClassCut& step, CutText& text, bool) {
  const auto is = [&](char32_t code) {
    switch (step.characters) {
      case CharacterClass::blank:
        return is_white_space(code);
      case CharacterClass::punctuation:
        return is_punctuation(code);
      case CharacterClass::numeric:
        return is_numeric(code);
    }
    return false;
  };
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    std::vector<Range> found;
    find_characters(piece, is, found);
    put_parts(with_gaps(found, piece.size(), false), step.behavior, pieces);
  });
}

void cut(const WordCut&, CutText& text, bool) {
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    enum class Kind { blank, word, other } last = Kind::blank;
    for (uint32_t at = 0; at < piece.size();) {
      const auto character = character_at(piece, at);
      const auto kind = is_white_space(character.code) ? Kind::blank
                        : is_word(character.code)      ? Kind::word
                                                       : Kind::other;
      if (kind != Kind::blank) {
        if (kind != last) pieces.push_back({{at, at}});
        pieces.back().range.end = at + character.bytes;
      }
      last = kind;
      at += character.bytes;
    }
  });
}

void cut(const MetaspaceCut& step, CutText& text, bool continues) {
  ReplaceText spaces;
  spaces.literal = " ";
  spaces.content = step.mark;
  text.rewrite([&](TrackedText& part, bool first) {
    replace_in(part, spaces);
    const bool prepends =
        step.prepend == Prepend::always || (step.prepend == Prepend::first && first);
    if (prepends && !(first && continues) && !part.text.starts_with(step.mark))
      prepend_to(part, step.mark);
  });
  if (!step.split) return;
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    std::vector<Range> found;
    find_literal(piece, step.mark, found);
    put_parts(with_gaps(found, piece.size(), false), CutBehavior::merged_with_next, pieces);
  });
}

void cut(const ScriptCut&, CutText& text, bool) {
  text.split([](std::string_view piece, std::vector<Piece>& pieces) {
    int last = kAnyScript;  // but one
    for (uint32_t at = 0; at < piece.size();) {
      const auto character = character_at(piece, at);
      const int script = script_of(character.code);
      // What goes with every script is dropped before the first.
      if (script != kAnyScript && script != last) pieces.push_back({{at, at}});
      at += character.bytes;
      if (!pieces.empty()) pieces.back().range.end = at;
      if (script != kAnyScript) last = script;
    }
  });
}

}  // namespace

void apply(const PreTokenizerStep& step, CutText& text, bool continues) {
  std::visit([&](const auto& each) { cut(each, text, continues); }, step);
}

std::string_view gpt2_pattern() {
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

}  // namespace tessera::text
