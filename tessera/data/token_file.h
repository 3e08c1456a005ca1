// Token files on disk: those of nanoGPT, llm.c and Megatron (token_writer.h writes them).
//
//   bare       uint16 or uint32, little endian, nothing else (nanoGPT's `train.bin`)
//   llm.c      256 int32 (magic, version, number of tokens, zeros), then the tokens:
//              magic 20240520, version 1: uint16 (GPT-2 data)
//              magic 20240801, version 7: uint32 (Llama-3 data)
//   Megatron   `x.bin` (tokens alone) and `x.idx`:
//              "MMIDIDX\0\0", int64 version 1, uint8 type code, int64 S sequences,
//              int64 D entries of the document index, int32 sizes[S], int64 byte pointers[S],
//              int64 documents[D]
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "tessera/base/choices.h"
#include "tessera/base/file.h"

namespace tessera::data {

/// How one token is stored, little endian.
enum class TokenType { uint8, uint16, uint32, int32, int64 };

int64_t token_bytes(TokenType type);
std::string_view name_of(TokenType type);

/// A mapped file of which bytes [first_byte, first_byte + num_tokens * token_bytes(type)) are
/// tokens.
struct TokenFile {
  MappedFile file;
  TokenType type = TokenType::uint16;
  int64_t first_byte = 0;
  int64_t num_tokens = 0;
};

/// A bare or llm.c file; `automatic` without a header is uint16.
/// UserError: missing, empty, odd number of bytes, a header that promises another number of tokens
/// than there are.
TokenFile open_token_file(const std::filesystem::path& path,
                          TokenDtype dtype = TokenDtype::automatic);

/// A Megatron data set, named by its .bin, its .idx or the common prefix. Its sequences form one
/// stream in file order. Cost: reads the whole .idx. UserError: as above, and wherever .idx and
/// .bin disagree.
TokenFile open_megatron(const std::filesystem::path& path,
                        TokenDtype dtype = TokenDtype::automatic);

/// The .idx that belongs to a Megatron data set's .bin.
std::filesystem::path megatron_index_of(const std::filesystem::path& path);

/// True if `path` names a Megatron data set: prefix, .idx, or .bin with an .idx beside it.
bool is_megatron(const std::filesystem::path& path);

}  // namespace tessera::data
