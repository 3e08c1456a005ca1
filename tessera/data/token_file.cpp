#include "tessera/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/token_formats.h"

namespace tessera::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little endian and read in place");

/// A number at any byte, aligned or not.
template <typename T>
T load(std::span<const std::byte> bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

int64_t size_of(const MappedFile& file) { return static_cast<int64_t>(file.bytes().size()); }

void check_agrees(const MappedFile& file, TokenType stored, TokenDtype asked) {
  if (asked == TokenDtype::automatic) return;
  const int64_t asked_bytes = asked == TokenDtype::uint16 ? 2 : 4;
  if (asked_bytes == token_bytes(stored)) return;
  user_error("{}: its header says {}, but token_dtype says {}; set token_dtype to auto",
             file.path().string(), name_of(stored),
             asked == TokenDtype::uint16 ? "uint16" : "uint32");
}

const LlmcKind* find_llmc_kind(const MappedFile& file) {
  if (size_of(file) < 4) return nullptr;
  const auto magic = load<int32_t>(file.bytes(), 0);
  for (const auto& kind : kLlmcKinds) {
    if (kind.magic == magic) return &kind;
  }
  return nullptr;
}

TokenFile read_llmc(MappedFile file, const LlmcKind& kind, TokenDtype dtype) {
  const auto path = file.path().string();
  if (size_of(file) < kLlmcHeaderBytes) {
    user_error(
        "{}: truncated: expected an llm.c header of {} bytes, got a file of {}; make it again",
        path, kLlmcHeaderBytes, size_of(file));
  }
  const auto version = load<int32_t>(file.bytes(), 4);
  if (version != kind.version) {
    user_error("{}: llm.c header: expected version {} with magic {}, got version {}", path,
               kind.version, kind.magic, version);
  }
  check_agrees(file, kind.type, dtype);
  const int64_t promised = load<int32_t>(file.bytes(), 8);
  const int64_t data_bytes = size_of(file) - kLlmcHeaderBytes;
  if (promised < 0 || promised * token_bytes(kind.type) != data_bytes) {
    const bool short_of = promised * token_bytes(kind.type) > data_bytes;
    user_error(
        "{}: {}its llm.c header promises {} tokens ({} bytes), got {} bytes of tokens; make it "
        "again",
        path, short_of ? "truncated: " : "", promised, promised * token_bytes(kind.type),
        data_bytes);
  }
  if (promised == 0)
    user_error("{}: expected tokens, got an llm.c header alone; make it again", path);
  return {std::move(file), kind.type, kLlmcHeaderBytes, promised};
}

std::filesystem::path with_suffix(const std::filesystem::path& path, const char* suffix) {
  auto name = path;
  const auto extension = path.extension();
  if (extension == ".bin" || extension == ".idx") name.replace_extension();
  name += suffix;
  return name;
}

struct MegatronIndex {
  TokenType type;
  int64_t num_sequences, num_documents;
};

MegatronIndex read_megatron_header(const MappedFile& index) {
  const auto bytes = index.bytes();
  const auto path = index.path().string();
  if (!index.text().starts_with(kMegatronMagic)) {
    user_error("{}: expected a Megatron index (magic MMIDIDX), got another file", path);
  }
  if (size_of(index) < kMegatronHeaderBytes) user_error("{}: truncated in its header", path);
  if (const auto version = load<int64_t>(bytes, 9); version != 1) {
    user_error("{}: expected Megatron index version 1, got {}", path, version);
  }
  MegatronIndex header{TokenType::uint16, load<int64_t>(bytes, 18), load<int64_t>(bytes, 26)};
  const int code = load<uint8_t>(bytes, 17);
  const auto* found =
      std::ranges::find(kMegatronTypes, code, [](const auto& each) { return each.code; });
  if (found == kMegatronTypes.end()) {
    user_error("{}: expected token type code 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16), got {}",
               path, code);
  }
  header.type = found->type;
  // Bounded first, so that the products below cannot overflow.
  const int64_t most = size_of(index);
  const auto [type, sequences, documents] = header;
  if (sequences < 0 || sequences > most || documents < 0 || documents > most ||
      kMegatronHeaderBytes + sequences * 12 + documents * 8 != most) {
    user_error(
        "{}: expected {} sequences and {} document entries as its header says, got {} bytes in "
        "all; truncated?",
        path, sequences, documents, most);
  }
  return header;
}

/// Every sequence follows the one before it in the .bin; documents are rising sequence numbers.
/// Returns the tokens.
int64_t check_megatron_tables(const MappedFile& index, const MegatronIndex& header) {
  const auto bytes = index.bytes();
  const auto path = index.path().string();
  const int64_t pointers = kMegatronHeaderBytes + header.num_sequences * 4;
  const int64_t documents = pointers + header.num_sequences * 8;
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < header.num_sequences; ++i) {
    const auto size = load<int32_t>(bytes, kMegatronHeaderBytes + i * 4);
    const auto pointer = load<int64_t>(bytes, pointers + i * 8);
    if (size < 0)
      user_error("{}: sequence {}: expected a size of 0 or more, got {}", path, i, size);
    if (pointer != num_tokens * token_bytes(header.type)) {
      user_error(
          "{}: sequence {}: expected to begin at byte {}, where the one before it ends, got {}",
          path, i, num_tokens * token_bytes(header.type), pointer);
    }
    num_tokens += size;
  }
  int64_t last = 0;
  for (int64_t i = 0; i < header.num_documents; ++i) {
    const auto first = load<int64_t>(bytes, documents + i * 8);
    if (first < last || first > header.num_sequences || (i == 0 && first != 0)) {
      user_error("{}: document entry {}: expected a sequence number from {} to {}, got {}", path, i,
                 last, i == 0 ? 0 : header.num_sequences, first);
    }
    last = first;
  }
  return num_tokens;
}

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return 1;
    case TokenType::uint16:
      return 2;
    case TokenType::uint32:
    case TokenType::int32:
      return 4;
    case TokenType::int64:
      return 8;
  }
  __builtin_unreachable();
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
      return "uint8";
    case TokenType::uint16:
      return "uint16";
    case TokenType::uint32:
      return "uint32";
    case TokenType::int32:
      return "int32";
    case TokenType::int64:
      return "int64";
  }
  __builtin_unreachable();
}

TokenFile open_token_file(const std::filesystem::path& path, TokenDtype dtype) {
  MappedFile file(path);
  const int64_t size = size_of(file);
  if (size == 0) user_error("{}: expected tokens, got an empty file; make it again", path.string());
  if (const auto* kind = find_llmc_kind(file)) return read_llmc(std::move(file), *kind, dtype);
  const TokenType type = dtype == TokenDtype::uint32 ? TokenType::uint32 : TokenType::uint16;
  if (size % token_bytes(type) != 0) {
    user_error(
        "{}: truncated, or not {} tokens: expected a multiple of {} bytes, got {}; make it again, "
        "or set token_dtype or format",
        path.string(), name_of(type), token_bytes(type), size);
  }
  return {std::move(file), type, 0, size / token_bytes(type)};
}

std::filesystem::path megatron_index_of(const std::filesystem::path& path) {
  return with_suffix(path, ".idx");
}

bool is_megatron(const std::filesystem::path& path) {
  const auto extension = path.extension();
  if (extension == ".idx") return true;
  const auto index = with_suffix(path, ".idx");
  if (extension == ".bin") return std::filesystem::exists(index);
  return !std::filesystem::exists(path) && std::filesystem::exists(index);
}

TokenFile open_megatron(const std::filesystem::path& path, TokenDtype dtype) {
  const MappedFile index(with_suffix(path, ".idx"));
  const auto header = read_megatron_header(index);
  check_agrees(index, header.type, dtype);
  const int64_t num_tokens = check_megatron_tables(index, header);

  MappedFile file(with_suffix(path, ".bin"));
  if (num_tokens * token_bytes(header.type) != size_of(file)) {
    user_error("{}: expected {} bytes ({} tokens of {}, as {} says), got {}", file.path().string(),
               num_tokens * token_bytes(header.type), num_tokens, name_of(header.type),
               index.path().string(), size_of(file));
  }
  if (num_tokens == 0)
    user_error("{}: expected tokens, got an empty file; make it again", file.path().string());
  return {std::move(file), header.type, 0, num_tokens};
}

}  // namespace tessera::data
