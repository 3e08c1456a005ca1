// A text on its way to tokens: what it has become, the pieces that it is cut into, and where each byte came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/pattern.h"

namespace tessera::text {

inline constexpr int64_t kNoToken = -1;

/// A part of a text that is turned into tokens by itself, or that is an added token already.
struct Piece {
  Range range;
  int64_t token = kNoToken;
};

/// A text that is rewritten. `origin`, where it is wanted, has for each byte the bytes of the
/// original that it stands for.
struct TrackedText {
  std::string text;
  std::vector<Range> origin;
  bool tracked = false;

  void put(std::string_view more, Range from);  ///< all of it stands for `from`
  void put(char32_t code, Range from);
  Range origin_of(size_t byte) const { return tracked ? origin[byte] : Range{}; }
  void clear();
};

/// A text and its pieces, in its order and without gaps that hold anything to be tokenised.
class CutText {
 public:
  /// One piece. `text` is valid UTF-8 and outlives this. `tracked`: origins are kept.
  CutText(std::string_view text, bool tracked);

  std::string_view text() const { return rewritten_ ? std::string_view(now_.text) : original_; }
  std::string_view of(const Piece& piece) const {
    return text().substr(piece.range.begin, piece.range.end - piece.range.begin);
  }
  bool tracked() const { return now_.tracked; }
  /// Bytes of the original that bytes [begin, end) stand for, begin < end.
  Range origin_of(Range range) const;

  const std::vector<Piece>& pieces() const { return pieces_; }

  /// Cuts each piece that is no token: `cut(text, ranges)` appends what it is cut into, as bytes of
  /// that text. Empty ones are dropped.
  template <typename Cut>
  void split(const Cut& cut) {
    next_pieces_.clear();
    for (const auto& piece : pieces_) {
      if (piece.token != kNoToken) {
        next_pieces_.push_back(piece);
        continue;
      }
      parts_.clear();
      cut(of(piece), parts_);
      for (const auto& part : parts_) {
        if (part.range.begin == part.range.end) continue;
        next_pieces_.push_back(
            {{piece.range.begin + part.range.begin, piece.range.begin + part.range.end},
             part.token});
      }
    }
    pieces_.swap(next_pieces_);
  }

  /// Rewrites each piece that is no token: `change(part, first)` gets it as a text of its own, and
  /// whether the whole text begins with it.
  template <typename Change>
  void rewrite(const Change& change) {
    TrackedText next, part;
    next.tracked = part.tracked = tracked();
    next.text.reserve(text().size() + 16);
    // What was cut off before the first piece still stands before it.
    if (!pieces_.empty() && pieces_[0].range.begin > 0) next.put(U' ', {});
    for (auto& piece : pieces_) {
      copy(piece.range, part);
      if (piece.token == kNoToken) change(part, piece.range.begin == 0);
      const auto begin = next.text.size();
      next.text += part.text;
      next.origin.insert(next.origin.end(), part.origin.begin(), part.origin.end());
      piece.range = range_of(begin, next.text.size());
    }
    std::erase_if(pieces_, [](const Piece& piece) {
      return piece.range.begin == piece.range.end && piece.token == kNoToken;
    });
    now_ = std::move(next);
    rewritten_ = true;
  }

 private:
  static Range range_of(size_t begin, size_t end);  ///< UserError if it is longer than 4 GiB
  void copy(Range range, TrackedText& part) const;

  std::string_view original_;
  TrackedText now_;  // its text counts once something was rewritten
  bool rewritten_ = false;
  std::vector<Piece> pieces_, next_pieces_, parts_;
};

}  // namespace tessera::text
