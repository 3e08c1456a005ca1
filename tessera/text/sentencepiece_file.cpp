#include "tessera/text/sentencepiece_file.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"
#include "tessera/text/vocabulary.h"

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

}  // namespace

StoredModel read_sentencepiece_file(const std::filesystem::path& path, std::string_view bytes) {
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

}  // namespace tessera::text
