// The tokens of a model and their ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, uint32_t, StringHash, std::equal_to<>>;

/// Ids need not be dense, nor begin with 0.
class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) noexcept = default;
  Vocabulary& operator=(Vocabulary&&) noexcept = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  ~Vocabulary() = default;

  /// False if the token is there already; it keeps its id then.
  bool add(std::string_view token, uint32_t id);
  /// A token that is there already gets the new id; the old id keeps it.
  void set(std::string_view token, uint32_t id);
  std::optional<uint32_t> id_of(std::string_view token) const;
  /// The token of an id; nullptr if it has none.
  const std::string* token_of(uint32_t id) const;
  size_t size() const { return ids_.size(); }
  size_t end() const { return tokens_.size(); }  ///< one more than the largest id

 private:
  TokenIds ids_;
  std::vector<const std::string*> tokens_;  // keys of ids_, which stay where they are
};

/// The token of a byte: <0x0A>.
std::string byte_token(uint8_t byte);
/// The byte of such a token, or -1.
int byte_of_token(std::string_view token);

}  // namespace tessera::text
