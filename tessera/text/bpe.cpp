#include <algorithm>
#include <queue>

#include "tessera/text/model.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// The symbols that a word begins as.
class FirstSymbols {
 public:
  FirstSymbols(const Bpe& model, std::string_view word, std::vector<ModelToken>& symbols,
               std::vector<bool>& frozen)
      : model_(model), word_(word), symbols_(symbols), frozen_(frozen) {}

  void all() {
    const size_t before = symbols_.size();
    for (uint32_t at = 0; at < word_.size();) {
      if (model_.takes_bytes) {
        byte(at++);
        continue;
      }
      if (model_.whole_symbols) {
        const auto found = model_.whole_symbols->longest(word_.substr(at));
        if (found.bytes > 0) {
          flush();
          const auto end = at + static_cast<uint32_t>(found.bytes);
          symbols_.push_back({found.value, {at, end}});
          frozen_.resize(symbols_.size() - before);
          frozen_.back() = true;
          at = end;
          continue;
        }
      }
      const uint32_t end = at + character_at(word_, at).bytes;
      character(at, end);
      at = end;
    }
    flush();
  }

 private:
  void byte(uint32_t at) {
    const auto id = model_.byte_ids[static_cast<uint8_t>(word_[at])];
    if (id >= 0) {
      flush();
      symbols_.push_back({static_cast<uint32_t>(id), {at, at + 1}});
    } else {
      unknown({at, at + 1});
    }
  }

  void character(uint32_t begin, uint32_t end) {
    text_.clear();
    if (begin > 0) text_ += model_.prefix;
    text_ += word_.substr(begin, end - begin);
    if (end == word_.size()) text_ += model_.suffix;
    if (const auto id = model_.vocabulary.id_of(text_)) {
      flush();
      symbols_.push_back({*id, {begin, end}});
    } else if (!model_.byte_fallback || !bytes(begin, end)) {
      unknown({begin, end});
    }
  }

  /// False if a byte has no token.
  bool bytes(uint32_t begin, uint32_t end) {
    std::vector<ModelToken> found;
    uint32_t at = begin;
    for (const char letter : text_) {
      const auto id = model_.vocabulary.id_of(byte_token(static_cast<uint8_t>(letter)));
      if (!id) return false;
      const uint32_t next = std::min(at + 1, end);
      found.push_back({*id, {at, next}});
      at = next;
    }
    if (model_.sentencepiece) {
      for (auto& each : found) each.range = {begin, begin};
      found.back().range.end = end;
    }
    symbols_.insert(symbols_.end(), found.begin(), found.end());
    return true;
  }

  void unknown(Range range) {
    if (model_.unknown.empty()) return;
    const auto id = model_.vocabulary.id_of(model_.unknown);
    if (pending_ && model_.fuse_unknown) {
      pending_->range.end = range.end;
      return;
    }
    flush();
    pending_ = ModelToken{*id, range};
  }

  void flush() {
    if (pending_) symbols_.push_back(*pending_);
    pending_.reset();
  }

  const Bpe& model_;
  std::string_view word_;
  std::vector<ModelToken>& symbols_;
  std::vector<bool>& frozen_;
  std::optional<ModelToken> pending_;  // what is unknown waits, others may join it
  std::string text_;
};

/// Few symbols: the smallest rank is looked for anew each time.
size_t merge_few(const Merges& merges, ModelToken* symbols, size_t count) {
  std::array<Merge, 64> next;  // of each with the one to its right
  const auto look = [&](size_t i) {
    return i + 1 < count ? merges.find(symbols[i].id, symbols[i + 1].id) : Merge{};
  };
  for (size_t i = 0; i < count; ++i) next[i] = look(i);
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i < count; ++i) {
      if (next[i].rank < next[best].rank) best = i;
    }
    if (next[best].rank == Merge::kNone) return count;
    symbols[best].id = next[best].id;
    symbols[best].range.end = symbols[best + 1].range.end;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      next[i] = next[i + 1];
    }
    next[best] = look(best);
    if (best > 0) next[best - 1] = look(best - 1);
  }
}

/// Many symbols: a queue of what may be merged.
size_t merge_many(const Merges& merges, ModelToken* symbols, size_t count,
                  const std::vector<bool>& frozen) {
  struct Candidate {
    uint32_t rank, left, id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  constexpr uint32_t kEnd = ~uint32_t{0};
  std::vector<uint32_t> before(count), behind(count);
  std::vector<bool> gone(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto stays = [&](size_t i) { return i < frozen.size() && frozen[i]; };
  const auto offer = [&](uint32_t left) {
    const uint32_t right = behind[left];
    if (right == kEnd || stays(left) || stays(right)) return;
    const auto merge = merges.find(symbols[left].id, symbols[right].id);
    if (merge.rank != Merge::kNone) queue.push({merge.rank, left, merge.id});
  };
  for (uint32_t i = 0; i < count; ++i) {
    before[i] = i == 0 ? kEnd : i - 1;
    behind[i] = i + 1 == count ? kEnd : i + 1;
  }
  for (uint32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, left, id] = queue.top();
    queue.pop();
    if (gone[left] || behind[left] == kEnd) continue;
    const uint32_t right = behind[left];
    const auto merge = merges.find(symbols[left].id, symbols[right].id);
    if (merge.rank != rank || merge.id != id) continue;  // one of the two has changed
    symbols[left].id = id;
    symbols[left].range.end = symbols[right].range.end;
    gone[right] = true;
    behind[left] = behind[right];
    if (behind[right] != kEnd) before[behind[right]] = left;
    if (before[left] != kEnd) offer(before[left]);
    offer(left);
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!gone[i]) symbols[kept++] = symbols[i];
  }
  return kept;
}

/// What SentencePiece leaves unknown is one token, however many characters it has.
void fuse_unknown(const Bpe& model, std::vector<ModelToken>& tokens, size_t from) {
  const auto id = model.vocabulary.id_of(model.unknown);
  size_t kept = from;
  for (size_t i = from; i < tokens.size(); ++i) {
    const bool joins = kept > from && id && tokens[i].id == *id && tokens[kept - 1].id == *id;
    if (joins) {
      tokens[kept - 1].range.end = tokens[i].range.end;
    } else {
      tokens[kept++] = tokens[i];
    }
  }
  tokens.resize(kept);
}

}  // namespace

void tokenize_word(const Bpe& model, std::string_view word, std::vector<ModelToken>& tokens) {
  const Range whole{0, static_cast<uint32_t>(word.size())};
  if (model.ignore_merges) {
    if (model.takes_bytes) {
      const auto found = model.words.find(word);
      if (found != model.words.end()) return tokens.push_back({found->second, whole});
    } else if (const auto id = model.vocabulary.id_of(word)) {
      return tokens.push_back({*id, whole});
    }
  }
  const size_t before = tokens.size();
  std::vector<bool> frozen;  // stays empty, without memory, but for SentencePiece's
  FirstSymbols(model, word, tokens, frozen).all();
  const size_t count = tokens.size() - before;
  if (count < 2) return;
  auto* symbols = tokens.data() + before;
  const bool few = count <= 64 && frozen.empty();
  const size_t kept = few ? merge_few(model.merges, symbols, count)
                          : merge_many(model.merges, symbols, count, frozen);
  tokens.resize(before + kept);
  if (model.sentencepiece && model.fuse_unknown) fuse_unknown(model, tokens, before);
}

}  // namespace tessera::text
