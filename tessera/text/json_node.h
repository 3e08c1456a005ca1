// A value of a JSON file with the name under which errors tell of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

/// JSON in UTF-8; UserError with `path` otherwise.
nlohmann::json parse_json(const std::filesystem::path& path, std::string_view text);

/// Reads are checked: a UserError says the file, the key, what was expected and what is there.
class JsonNode {
 public:
  JsonNode(std::string where, const nlohmann::json& value)
      : where_(std::move(where)), value_(&value) {}

  const std::string& where() const { return where_; }
  const nlohmann::json& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  /// The value of a key of an object; null if it has none.
  JsonNode operator[](std::string_view key) const;
  JsonNode operator[](size_t index) const;
  size_t size() const { return value_->size(); }

  /// UserError unless this is an object that has no other keys.
  void expect_keys(std::initializer_list<std::string_view> known) const;
  void expect_object() const;
  void expect_array() const;

  std::string text() const;
  std::string text_or(std::string_view otherwise) const;  ///< `otherwise` if it is null
  bool truth() const;
  bool truth_or(bool otherwise) const;
  double number() const;
  /// A whole number from 0 to `most`.
  uint32_t count(uint32_t most = kMaxId) const;
  /// One of `choices`: its index.
  size_t one_of(std::initializer_list<std::string_view> choices) const;

  /// The value of "type".
  std::string type() const;
  [[noreturn]] void refuse(std::string_view expected) const;

  static constexpr uint32_t kMaxId = (1U << 24) - 1;  ///< no vocabulary is that large

 private:
  std::string where_;
  const nlohmann::json* value_;
};

/// Calls `each` with every step of a value that is null, one step, or a Sequence whose steps are
/// under `list`, and may be Sequences again.
void each_step(const JsonNode& node, std::string_view list,
               const std::function<void(const JsonNode&)>& each, int depth = 0);

}  // namespace tessera::text
