#include "tessera/text/vocabulary.h"

#include <fmt/format.h>

namespace tessera::text {

bool Vocabulary::add(std::string_view token, uint32_t id) {
  if (ids_.find(token) != ids_.end()) return false;
  set(token, id);
  return true;
}

void Vocabulary::set(std::string_view token, uint32_t id) {
  const auto place = ids_.insert_or_assign(std::string(token), id).first;
  if (tokens_.size() <= id) tokens_.resize(size_t{id} + 1, nullptr);
  tokens_[id] = &place->first;
}

std::optional<uint32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::token_of(uint32_t id) const {
  return id < tokens_.size() ? tokens_[id] : nullptr;
}

std::string byte_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [](char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    return -1;
  };
  const int high = digit(token[3]), low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace tessera::text
