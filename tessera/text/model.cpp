#include "tessera/text/model.h"

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {

const Vocabulary& vocabulary_of(const Model& model) {
  return std::visit([](const auto& each) -> const Vocabulary& { return each.vocabulary; }, model);
}

void tokenize_word(const Model& model, std::string_view word, std::vector<ModelToken>& tokens) {
  std::visit([&](const auto& each) { tokenize_word(each, word, tokens); }, model);
}

void tokenize_word(const WordPiece& model, std::string_view word, std::vector<ModelToken>& tokens) {
  const Range whole{0, static_cast<uint32_t>(word.size())};
  if (num_characters(word) > model.max_characters) return tokens.push_back({model.unknown, whole});
  const size_t before = tokens.size();
  std::string part;
  for (uint32_t begin = 0; begin < word.size();) {
    auto end = static_cast<uint32_t>(word.size());
    std::optional<uint32_t> id;
    while (begin < end) {
      part = begin > 0 ? model.prefix : "";
      part += word.substr(begin, end - begin);
      id = model.vocabulary.id_of(part);
      if (id) break;
      do --end;
      while ((static_cast<uint8_t>(word[end]) & 0xC0) == 0x80);
    }
    if (!id) {
      tokens.resize(before);
      return tokens.push_back({model.unknown, whole});
    }
    tokens.push_back({*id, {begin, end}});
    begin = end;
  }
}

void tokenize_word(const WordLevel& model, std::string_view word, std::vector<ModelToken>& tokens) {
  auto id = model.vocabulary.id_of(word);
  if (!id) id = model.unknown;
  if (!id)
    user_error(
        "the word '{}' is not in the vocabulary, which has no token for unknown ones; set "
        "model.unk_token",
        in_one_line(word));
  tokens.push_back({*id, {0, static_cast<uint32_t>(word.size())}});
}

WordCache::WordCache() : slots_(kSlots) {}

void WordCache::append(const Model& model, std::string_view word, std::vector<uint32_t>& ids) {
  if (word.size() > 15) return append_long(model, word, ids);
  std::array<uint64_t, 2> key{};
  std::memcpy(key.data(), word.data(), word.size());
  key[1] |= uint64_t{word.size()} << 56;
  const uint64_t mixed = (key[0] ^ (key[1] * 0x9E3779B97F4A7C15U)) * 0xD6E8FEB86659FD93U;
  auto& slot = slots_[(mixed >> 40) & (kSlots - 1)];
  if (slot.count > 0 && slot.word == key) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
    return;
  }
  tokens_.clear();
  tokenize_word(model, word, tokens_);
  for (const auto& token : tokens_) ids.push_back(token.id);
  if (tokens_.empty() || tokens_.size() > slot.ids.size()) return;
  slot.word = key;
  slot.count = static_cast<uint32_t>(tokens_.size());
  for (size_t i = 0; i < tokens_.size(); ++i) slot.ids[i] = tokens_[i].id;
}

void WordCache::append_long(const Model& model, std::string_view word, std::vector<uint32_t>& ids) {
  const auto found = long_words_.find(word);
  if (found != long_words_.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  tokens_.clear();
  tokenize_word(model, word, tokens_);
  const size_t before = ids.size();
  for (const auto& token : tokens_) ids.push_back(token.id);
  if (word.size() > 256) return;
  if (long_words_.size() >= kMaxLong) long_words_.clear();
  long_words_.emplace(
      word, std::vector<uint32_t>(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end()));
}

}  // namespace tessera::text
