// One long, read-only sequence of tokens from one or many files, and where each token came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera::data {

struct TokenSourceOptions {
  std::vector<std::string> paths;  ///< files and folders, read in this order
  DataFormat format = DataFormat::automatic;
  TokenDtype token_dtype = TokenDtype::automatic;  ///< of token files without a header
  std::vector<std::string> extensions;  ///< of files taken from folders as text; empty: all
  std::string name = "train";           ///< what has the paths, in errors
};

/// Tokens of several files as one sequence. Text is one token a byte; between two text files stands
/// one byte 0, so that the end of a document can be learned, and empty ones are left out of
/// folders. Token files follow each other directly. Move-only. Token files and texts of 1 MiB or
/// more are mapped; smaller texts are loaded into one block (9,400 headers, 38 MB: 0.2 s), since a
/// mapping each would cost more than its bytes.
class TokenSource {
 public:
  /// UserError, one line: missing, empty or truncated file, unknown format, folder with no matching
  /// file, a token_dtype that cannot take effect.
  static TokenSource open(const TokenSourceOptions& options);

  int64_t size() const { return size_; }                  ///< tokens
  bool is_text() const { return num_token_files_ == 0; }  ///< bytes, of no token file

  /// Tokens [begin, begin + out.size()) into `out`, across files. A range beyond size() is
  /// std::out_of_range. After check_vocabulary(), UserError at the first token beyond it.
  void read(int64_t begin, std::span<int64_t> out) const;

  /// The SHA-256 of up to 16 blocks of 4 KiB at equal distances over all of the bytes: another
  /// content of a file most likely has another. Reads no more than these.
  std::string sample_digest() const;

  /// Refuses tokens outside [0, vocab_size) from now on: scans the first `scan_bytes` now (about 4
  /// GB/s once in memory) and checks every later read. UserError names file, byte offset, token and
  /// vocabulary.
  void check_vocabulary(int64_t vocab_size, int64_t scan_bytes = int64_t{256} << 20);

 private:
  /// A run of tokens that lie together in memory.
  struct Segment {
    int64_t begin = 0;  ///< its first token in the sequence
    int64_t num_tokens = 0;
    const std::byte* data = nullptr;
    int64_t file_offset = 0;  ///< bytes before `data` in its file
    uint32_t file = 0;        ///< into files_
    TokenType type = TokenType::uint8;
  };

  void append(Segment segment);
  void append_token_file(TokenFile file);
  void append_text(std::span<const std::filesystem::path> files);
  void append_path(const std::filesystem::path& path, const TokenSourceOptions& options);
  size_t segment_at(int64_t token) const;
  [[noreturn]] void refuse(int64_t token_index) const;

  std::vector<std::filesystem::path> files_;
  std::vector<MappedFile> mapped_;
  std::vector<std::unique_ptr<std::byte[]>> loaded_;
  std::vector<Segment> segments_;
  int64_t size_ = 0;
  int64_t num_token_files_ = 0;
  int64_t vocab_size_ = 0;  ///< 0: not checked
};

}  // namespace tessera::data
