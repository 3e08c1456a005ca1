#include <algorithm>

#include "tessera/text/model.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// The best way that was found to one place of a word.
struct BestPath {
  double score = 0;
  uint32_t begin = 0, id = 0;  // of its last token
  bool found = false;
};

void reach(const Unigram& model, BestPath& place, const BestPath& path) {
  BestPath better = path;
  if (model.single_precision) better.score = static_cast<float>(better.score);
  if (!place.found || better.score > place.score) place = better;
}

std::vector<BestPath> best_paths(const Unigram& model, std::string_view word) {
  std::vector<BestPath> places(word.size() + 1);
  for (uint32_t at = 0; at < word.size();) {
    const double score = places[at].score;
    const size_t character = character_at(word, at).bytes;
    bool single = false;
    model.trie.prefixes(word.substr(at), [&](size_t bytes, uint32_t id) {
      reach(model, places[at + bytes], {score + model.scores[id], at, id, true});
      single |= bytes == character;
    });
    if (!single)
      reach(model, places[at + character],
            {score + model.unknown_score, at, model.unknown.value_or(0), true});
    at += static_cast<uint32_t>(character);
  }
  return places;
}

/// Bytes of what has no token; false if a byte has none either.
bool put_bytes(const Unigram& model, std::string_view word, Range range,
               std::vector<ModelToken>& tokens) {
  std::vector<ModelToken> found;
  for (uint32_t at = range.begin; at < range.end; ++at) {
    const auto id = model.vocabulary.id_of(byte_token(static_cast<uint8_t>(word[at])));
    if (!id) return false;
    found.push_back({*id, range});
    if (!model.sentencepiece) continue;
    const bool last = at + 1 == range.end || (static_cast<uint8_t>(word[at + 1]) & 0xC0) != 0x80;
    uint32_t begin = at;
    while ((static_cast<uint8_t>(word[begin]) & 0xC0) == 0x80) --begin;
    found.back().range = {begin, last ? at + 1 : begin};
  }
  tokens.insert(tokens.end(), found.begin(), found.end());
  return true;
}

}  // namespace

void tokenize_word(const Unigram& model, std::string_view word, std::vector<ModelToken>& tokens) {
  const auto places = best_paths(model, word);
  std::vector<ModelToken> from_behind;
  bool known = true;  // of the last one
  for (uint32_t at = static_cast<uint32_t>(word.size()); at > 0; at = places[at].begin) {
    const bool is_unknown = model.unknown && places[at].id == *model.unknown;
    if (is_unknown && !known) {
      from_behind.back().range.begin = places[at].begin;
    } else {
      from_behind.push_back({places[at].id, {places[at].begin, at}});
    }
    known = !is_unknown;
  }
  std::reverse(from_behind.begin(), from_behind.end());
  for (const auto& token : from_behind) {
    // What was put together from unknown characters may be a token after all.
    const auto id =
        model.vocabulary.id_of(word.substr(token.range.begin, token.range.end - token.range.begin));
    if (id && !model.sentencepiece) {
      tokens.push_back({*id, token.range});
    } else if (model.unknown && token.id == *model.unknown && model.byte_fallback &&
               put_bytes(model, word, token.range, tokens)) {
      continue;
    } else {
      tokens.push_back(token);
    }
  }
}

}  // namespace tessera::text
