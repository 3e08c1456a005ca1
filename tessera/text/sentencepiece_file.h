// SentencePiece's tokenizer.model: a message of Protocol Buffers (its sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

enum class PieceType { normal = 1, unknown, control, user_defined, unused, byte };
enum class ModelType { unigram = 1, bpe };

/// A token of the file.
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
  std::string_view character_map;  ///< in the bytes that were read
};

/// UserError: no such message, pieces without text, score or a type that is known here.
StoredModel read_sentencepiece_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace tessera::text
