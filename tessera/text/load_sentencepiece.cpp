// Tokenizers of SentencePiece's tokenizer.model.
#include <algorithm>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/text/sentencepiece_file.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

Vocabulary make_vocabulary(const std::filesystem::path& path, const StoredModel& stored) {
  Vocabulary vocabulary;
  for (uint32_t id = 0; id < stored.pieces.size(); ++id) {
    if (!vocabulary.add(stored.pieces[id].text, id))
      user_error("{}: piece {} stands twice", path.string(), id);
  }
  return vocabulary;
}

const StoredPiece& unknown_piece(const std::filesystem::path& path, const StoredModel& stored) {
  for (const auto& piece : stored.pieces) {
    if (piece.type == PieceType::unknown) return piece;
  }
  user_error("{}: expected a piece for what is unknown, got none", path.string());
}

bool stands_in_texts(const StoredPiece& piece) {
  return piece.type == PieceType::normal || piece.type == PieceType::user_defined;
}

/// Neighbours that are a piece together are merged, those of the highest score first.
Bpe make_bpe(const std::filesystem::path& path, const StoredModel& stored) {
  Bpe model;
  model.vocabulary = make_vocabulary(path, stored);
  model.unknown = unknown_piece(path, stored).text;
  model.sentencepiece = true;
  model.byte_fallback = stored.byte_fallback;
  model.fuse_unknown = !stored.byte_fallback;
  model.whole_symbols.emplace();
  std::set<float, std::greater<>> scores;
  for (const auto& piece : stored.pieces) scores.insert(piece.score);
  std::unordered_map<float, uint32_t> ranks;
  for (const float score : scores) ranks.emplace(score, static_cast<uint32_t>(ranks.size()));
  const auto normal = [&](std::string_view text) -> std::optional<uint32_t> {
    const auto id = model.vocabulary.id_of(text);
    return id && stands_in_texts(stored.pieces[*id]) ? id : std::nullopt;
  };
  for (uint32_t id = 0; id < stored.pieces.size(); ++id) {
    const auto& piece = stored.pieces[id];
    // What only looks like one of these in a text is none.
    if (piece.type == PieceType::user_defined) model.whole_symbols->add(piece.text, id);
    if (piece.type != PieceType::normal) continue;
    for (size_t cut = 0; cut < piece.text.size();) {
      const auto bytes = character_at(piece.text, cut).bytes;
      if (!normal(piece.text.substr(cut, bytes)))
        user_error("{}: piece {}: expected each of its characters to be a piece, too",
                   path.string(), id);
      cut += bytes;
      if (cut == piece.text.size()) break;
      const auto left = normal(piece.text.substr(0, cut)), right = normal(piece.text.substr(cut));
      if (left && right) model.merges.add(*left, *right, {ranks.at(piece.score), id});
    }
  }
  return model;
}

Unigram make_unigram(const std::filesystem::path& path, const StoredModel& stored) {
  Unigram model;
  model.vocabulary = make_vocabulary(path, stored);
  model.unknown = model.vocabulary.id_of(unknown_piece(path, stored).text);
  model.sentencepiece = model.single_precision = true;
  model.byte_fallback = stored.byte_fallback;
  float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::lowest();
  for (const auto& piece : stored.pieces) {
    if (piece.type != PieceType::normal) continue;
    least = std::min(least, piece.score);
    most = std::max(most, piece.score);
  }
  model.unknown_score = least - 10.0F;
  for (uint32_t id = 0; id < stored.pieces.size(); ++id) {
    const auto& piece = stored.pieces[id];
    const auto length = static_cast<float>(piece.text.size());
    model.scores.push_back(piece.type == PieceType::user_defined
                               ? static_cast<float>(length * most - 0.1)
                               : piece.score);
    if (stands_in_texts(piece)) model.trie.add(piece.text, id);
  }
  return model;
}

}  // namespace

Tokenizer parse_sentencepiece(const std::filesystem::path& path, std::string_view bytes) {
  const auto stored = read_sentencepiece_file(path, bytes);
  if (stored.pieces.empty())
    user_error("{}: expected a SentencePiece model, got one without pieces", path.string());
  auto parts = std::make_unique<Tokenizer::Parts>();
  if (stored.type == static_cast<uint64_t>(ModelType::bpe)) {
    parts->model = make_bpe(path, stored);
  } else if (stored.type == static_cast<uint64_t>(ModelType::unigram)) {
    parts->model = make_unigram(path, stored);
  } else {
    user_error("{}: its model type {} is not known here (known are 1, unigram, and 2, bpe)",
               path.string(), stored.type);
  }
  auto& text = parts->sentencepiece_text.emplace();
  if (!stored.character_map.empty())
    text.map.emplace(path.string() + ": its normalizer", stored.character_map);
  text.dummy_prefix = stored.dummy_prefix;
  text.suffix = stored.whitespace_as_suffix;
  text.remove_extra_blanks = stored.remove_extra;
  text.escape_blanks = stored.escape;
  std::vector<AddedToken> control;
  for (uint32_t id = 0; id < stored.pieces.size(); ++id) {
    const auto& piece = stored.pieces[id];
    if (piece.type == PieceType::user_defined) text.whole_symbols.add(piece.text, id);
    if (piece.type != PieceType::control) continue;
    AddedToken token;
    token.id = id;
    token.content = piece.text;
    token.in_text = false;
    token.special = true;
    control.push_back(std::move(token));
    if (piece.text == stored.eos_piece) parts->end_of_text = id;
    if (piece.text != stored.bos_piece) continue;
    const TemplatePart bos{TemplatePart::Kind::special, {id}, 0},
        a{TemplatePart::Kind::first, {}, 0}, b{TemplatePart::Kind::second, {}, 1};
    parts->post_processor.single = Template{bos, a};
    parts->post_processor.pair = Template{bos, a, b};
  }
  parts->added = AddedTokens(std::move(control), {});
  parts->sentencepiece_decoding = SentencePieceDecoding{.consumes_prefix = stored.dummy_prefix,
                                                        .consumes_blanks = stored.remove_extra,
                                                        .unknown = stored.unknown_surface};
  return Tokenizer(std::move(parts));
}

Tokenizer load_sentencepiece(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_sentencepiece(path, file.text());
}

}  // namespace tessera::text
