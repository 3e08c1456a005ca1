// What turns a word into tokens: the `model` of tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/text/merges.h"
#include "tessera/text/pattern.h"
#include "tessera/text/piece_trie.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {

/// A token and the bytes of the word that it stands for.
struct ModelToken {
  uint32_t id = 0;
  Range range;
};

/// Byte pair encoding (Sennrich et al. 2016): of all neighbours that may be merged those of the
/// smallest rank, from left to right, until none is left.
struct Bpe {
  Vocabulary vocabulary;
  Merges merges;
  bool takes_bytes = false;             ///< tokens are in GPT-2's letters, words are bytes
  std::array<int64_t, 256> byte_ids{};  ///< if takes_bytes: -1, or the token of each byte
  bool ignore_merges = false;           ///< a word that is a token is that token
  TokenIds words;                       ///< if so, and takes_bytes: tokens as bytes
  std::string unknown;                  ///< "": what has no token is dropped
  bool fuse_unknown = false, byte_fallback = false;
  std::string prefix, suffix;  ///< of tokens that continue a word, that end one
  /// Like SentencePiece: these are single symbols that are never merged, and of the bytes of
  /// one character only the last stands for it.
  std::optional<PieceTrie> whole_symbols;
  bool sentencepiece = false;
};

/// Longest match first, from left to right (Schuster and Nakajima 2012, as BERT has it).
struct WordPiece {
  Vocabulary vocabulary;
  uint32_t unknown = 0;
  std::string prefix = "##";
  size_t max_characters = 100;  ///< of a word that is not unknown
};

/// The likeliest of all ways to cut a word (Kudo 2018).
struct Unigram {
  Vocabulary vocabulary;
  PieceTrie trie;
  std::vector<double> scores;  ///< of each id
  std::optional<uint32_t> unknown;
  double unknown_score = 0;
  bool byte_fallback = false;
  bool single_precision = false;  ///< sums are rounded as SentencePiece has them
  bool sentencepiece = false;     ///< as for BPE
};

struct WordLevel {
  Vocabulary vocabulary;
  std::optional<uint32_t> unknown;
};

using Model = std::variant<Bpe, WordPiece, Unigram, WordLevel>;

const Vocabulary& vocabulary_of(const Model& model);

/// Appends the tokens of one word. Time: linear in the word for BPE of up to 64 symbols,
/// n log n beyond. UserError if a word is unknown to a WordLevel model without a token for that.
void tokenize_word(const Model& model, std::string_view word, std::vector<ModelToken>& tokens);

/// Words and their tokens that came before, so that most need no model. For one thread; at most
/// some 10 MiB.
class WordCache {
 public:
  WordCache();
  /// Like tokenize_word, but ids alone.
  void append(const Model& model, std::string_view word, std::vector<uint32_t>& ids);

 private:
  struct Slot {
    std::array<uint64_t, 2> word{};  // up to 15 bytes, then how many
    std::array<uint32_t, 3> ids{};
    uint32_t count = 0;  // 0: empty
  };
  static constexpr size_t kSlots = size_t{1} << 16, kMaxLong = size_t{1} << 14;

  void append_long(const Model& model, std::string_view word, std::vector<uint32_t>& ids);

  std::vector<Slot> slots_;
  std::unordered_map<std::string, std::vector<uint32_t>, StringHash, std::equal_to<>> long_words_;
  std::vector<ModelToken> tokens_;
};

// The single ones, as tokenize_word calls them.
void tokenize_word(const Bpe& model, std::string_view word, std::vector<ModelToken>& tokens);
void tokenize_word(const WordPiece& model, std::string_view word, std::vector<ModelToken>& tokens);
void tokenize_word(const Unigram& model, std::string_view word, std::vector<ModelToken>& tokens);
void tokenize_word(const WordLevel& model, std::string_view word, std::vector<ModelToken>& tokens);

}  // namespace tessera::text
