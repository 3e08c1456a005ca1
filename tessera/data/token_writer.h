// Writing token files so that whoever was interrupted can go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera::data {

/// What tells readers of the tokens.
enum class TokenHeader {
  none,     ///< nothing (nanoGPT)
  llmc,     ///< llm.c's 1024 bytes before them
  megatron  ///< an .idx beside the .bin
};

struct TokenWriterOptions {
  TokenType type = TokenType::uint16;  ///< uint16 or uint32; int32 for Megatron
  TokenHeader header = TokenHeader::none;
};

/// What is written, by tokens. `documents` are kept for Megatron alone.
struct WrittenTokens {
  int64_t num_tokens = 0;
  std::vector<int64_t> documents;  ///< tokens of each that has ended
};

/// Writes PATH.partial, which gets its final name at commit(). Destroyed without, it stays, so that
/// another writer goes on with it. Nobody else may write it meanwhile (flock).
class TokenWriter {
 public:
  /// Begins, or goes on behind what an earlier one had `done`; what it wrote behind that is cut off.
  /// UserError: the partial file is written by another process, holds something although nothing was
  /// done, or less than was done; a path that the header does not allow. SystemError: the folder
  /// cannot be written.
  TokenWriter(const std::filesystem::path& path, const TokenWriterOptions& options,
              std::optional<WrittenTokens> done = std::nullopt);
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// UserError if a token does not fit the type, or more than llm.c's header can count. SystemError
  /// when the disk is full.
  void append(std::span<const uint32_t> tokens);
  void end_document();
  /// What was written so far survives a crash of the machine.
  const WrittenTokens& flush();
  void commit();

  const WrittenTokens& written() const { return written_; }

 private:
  struct Descriptor {
    Descriptor() = default;
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor();
    int fd = -1;
  };

  void open(bool goes_on);
  void write(std::string_view bytes);
  void write_llmc_header();
  void write_megatron_index() const;

  std::filesystem::path path_, partial_;
  TokenWriterOptions options_;
  WrittenTokens written_;
  int64_t ended_tokens_ = 0;  ///< of all documents that have ended
  Descriptor file_;
};

std::filesystem::path partial_name(std::filesystem::path path);

}  // namespace tessera::data
