#include "tessera/text/added_tokens.h"

#include <algorithm>
#include <cassert>

#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

size_t begin_of_last(std::string_view text, size_t end) {
  size_t at = end - 1;
  while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

/// Whether no word goes on before `begin` or behind `end`.
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(character_at(text, begin_of_last(text, begin)).code)) return false;
  return end == text.size() || !is_word(character_at(text, end).code);
}

size_t blanks_before(std::string_view text, size_t begin, size_t from) {
  while (begin > from) {
    const size_t last = begin_of_last(text, begin);
    if (!is_white_space(character_at(text, last).code)) break;
    begin = last;
  }
  return begin;
}

size_t blanks_behind(std::string_view text, size_t end) {
  while (end < text.size()) {
    const auto next = character_at(text, end);
    if (!is_white_space(next.code)) break;
    end += next.bytes;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& token = tokens_[i];
    by_id_[token.id] = i;
    if (token.special) special_.insert(token.content);
    TrackedText content;
    content.text = token.content;
    if (token.normalized) {
      for (const auto& step : normalizer) apply(step, content);
    }
    token.text = content.text;
    if (content.text.empty() || !token.in_text) continue;
    tries_[token.normalized].add(content.text, static_cast<uint32_t>(i));
    begins_[token.normalized][static_cast<uint8_t>(content.text[0])] = true;
  }
}

const AddedToken* AddedTokens::token_of(uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::token_named(std::string_view content) const {
  for (const auto& token : tokens_) {
    if (token.content == content) return &token;
  }
  return nullptr;
}

void AddedTokens::find(std::string_view text, bool normalized, const IsSpecial& is_special,
                       std::vector<Piece>& pieces) const {
  const auto& begins = begins_[normalized];
  size_t from = 0;
  const auto range = [](size_t begin, size_t end) {
    return Range{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  };
  for (size_t at = 0; at < text.size();) {
    if (!begins[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const auto found = tries_[normalized].longest(text.substr(at));
    if (found.bytes == 0) {
      ++at;
      continue;
    }
    const auto& token = tokens_[found.value];
    size_t begin = at, end = at + found.bytes;
    at = end;
    if (token.special && !is_special(begin, end)) continue;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = blanks_before(text, begin, std::min(from, begin));
    if (token.rstrip) end = blanks_behind(text, end);
    if (from < begin) pieces.push_back({range(from, begin)});
    pieces.push_back({range(begin, end), token.id});
    from = end;
  }
  if (from < text.size()) pieces.push_back({range(from, text.size())});
}

void AddedTokens::cut(CutText& text, bool normalized, const EncodeOptions& options) const {
  if (tries_[normalized].empty()) return;
  assert(options.plain.empty() || text.tracked());
  text.split([&](std::string_view piece, std::vector<Piece>& pieces) {
    const auto before = static_cast<size_t>(piece.data() - text.text().data());
    const auto is_special = [&](size_t begin, size_t end) {
      if (!options.find_special_tokens) return false;
      if (options.plain.empty()) return true;
      const auto origin = text.origin_of(
          {static_cast<uint32_t>(before + begin), static_cast<uint32_t>(before + end)});
      const auto next =
          std::ranges::upper_bound(options.plain, size_t{origin.begin}, {}, &ByteRange::end);
      return next == options.plain.end() || next->begin >= origin.end;
    };
    find(piece, normalized, is_special, pieces);
  });
}

}  // namespace tessera::text
