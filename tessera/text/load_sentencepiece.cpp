// SentencePiece's tokenizer.model: a message of Protocol Buffers (its sentencepiece_model.proto).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// One field of a message; of numbers `number`, of texts and messages `bytes`.
struct Field {
  uint32_t tag = 0;
  uint64_t number = 0;
  std::string_view bytes;
  float real() const {
    const auto bits = static_cast<uint32_t>(number);
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

class Message {
 public:
  Message(const std::filesystem::path& path, std::string_view bytes) : path_(path), left_(bytes) {}

  std::optional<Field> next() {
    if (left_.empty()) return std::nullopt;
    const uint64_t key = varint();
    Field field{.tag = static_cast<uint32_t>(key >> 3), .number = 0, .bytes = {}};
    switch (key & 7) {
      case 0:
        field.number = varint();
        break;
      case 1:
        field.number = fixed(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.number = fixed(4);
        break;
      default:
        broken();
    }
    return field;
  }

 private:
  [[noreturn]] void broken() const {
    user_error("{}: expected a SentencePiece model, got something else, or half of one",
               path_.string());
  }
  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) broken();
    const auto taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    broken();
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }

  const std::filesystem::path& path_;
  std::string_view left_;
};

enum class PieceType { normal = 1, unknown, control, user_defined, unused, byte };
enum class ModelType { unigram = 1, bpe };

struct StoredPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

/// What is read of the file.
struct StoredModel {
  std::vector<StoredPiece> pieces;
  uint64_t type = 1;
  bool byte_fallback = false, whitespace_as_suffix = false;
  bool dummy_prefix = true, remove_extra = true, escape = true;
  std::string unknown_surface = " \xE2\x81\x87 ", bos_piece = "<s>", eos_piece = "</s>";
  std::string_view character_map;
};

StoredPiece read_piece(const std::filesystem::path& path, std::string_view bytes, size_t id) {
  StoredPiece piece;
  Message message(path, bytes);
  while (const auto field = message.next()) {
    if (field->tag == 1) piece.text = field->bytes;
    if (field->tag == 2) piece.score = field->real();
    if (field->tag == 3) {
      if (field->number < 1 || field->number > 6)
        user_error("{}: piece {}: its type {} is not known here", path.string(), id, field->number);
      piece.type = static_cast<PieceType>(field->number);
    }
  }
  if (piece.text.empty() || !is_utf8(piece.text))
    user_error("{}: piece {}: expected a text in UTF-8", path.string(), id);
  if (!std::isfinite(piece.score))
    user_error("{}: piece {}: expected a score, got {}", path.string(), id, piece.score);
  if (piece.type == PieceType::unused)
    user_error("{}: piece {}: pieces marked as unused are not known here", path.string(), id);
  if (piece.type == PieceType::byte && byte_of_token(piece.text) < 0)
    user_error("{}: piece {}: expected a byte such as <0x0A>", path.string(), id);
  return piece;
}

StoredModel read_model_file(const std::filesystem::path& path, std::string_view bytes) {
  StoredModel model;
  Message message(path, bytes);
  while (const auto field = message.next()) {
    if (field->tag == 1)
      model.pieces.push_back(read_piece(path, field->bytes, model.pieces.size()));
    Message inner(path, field->bytes);
    if (field->tag == 2) {
      while (const auto each = inner.next()) {
        if (each->tag == 3) model.type = each->number;
        if (each->tag == 24) model.whitespace_as_suffix = each->number != 0;
        if (each->tag == 35) model.byte_fallback = each->number != 0;
        if (each->tag == 44) model.unknown_surface = each->bytes;
        if (each->tag == 46) model.bos_piece = each->bytes;
        if (each->tag == 47) model.eos_piece = each->bytes;
      }
    }
    if (field->tag == 3) {
      while (const auto each = inner.next()) {
        if (each->tag == 2) model.character_map = each->bytes;
        if (each->tag == 3) model.dummy_prefix = each->number != 0;
        if (each->tag == 4) model.remove_extra = each->number != 0;
        if (each->tag == 5) model.escape = each->number != 0;
      }
    }
    if (field->tag == 5) {
      while (const auto each = inner.next()) {
        if (each->tag == 2 && !each->bytes.empty())
          user_error("{}: its denormalizer is not known here", path.string());
      }
    }
  }
  return model;
}

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
  const auto stored = read_model_file(path, bytes);
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
