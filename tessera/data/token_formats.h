// The numbers of llm.c's and Megatron's token files, for those that read and write them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/data/token_file.h"

namespace tessera::data {

inline constexpr int64_t kLlmcHeaderInts = 256;
inline constexpr int64_t kLlmcHeaderBytes = kLlmcHeaderInts * 4;
struct LlmcKind {
  int32_t magic, version;
  TokenType type;
};
inline constexpr std::array<LlmcKind, 2> kLlmcKinds{
    {{20240520, 1, TokenType::uint16}, {20240801, 7, TokenType::uint32}}};

inline constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
inline constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;
struct MegatronType {
  uint8_t code;
  TokenType type;
};
inline constexpr std::array<MegatronType, 4> kMegatronTypes{
    {{1, TokenType::uint8}, {4, TokenType::int32}, {5, TokenType::int64}, {8, TokenType::uint16}}};

}  // namespace tessera::data
