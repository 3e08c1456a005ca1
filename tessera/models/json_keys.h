// One JSON object read key by key: every error is one line that names file and key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tessera::models {

/// Reads a file that holds one JSON object. UserError if it is none.
nlohmann::json read_json_object(const std::filesystem::path& path, const std::string& expected);

/// The keys of one object of a file. null counts as absent, as in transformers; `absent` is what an
/// absent key means, without it the key must be there. UserError on a wrong type or range.
class JsonKeys {
 public:
  /// `where`: begins every error. Keeps a reference to `object`.
  JsonKeys(std::string where, const nlohmann::json& object)
      : where_(std::move(where)), object_(object) {}

  bool has(const std::string& key) const;
  bool is_null(const std::string& key) const;  ///< there, and null
  const nlohmann::json& at(const std::string& key) const;
  const std::string& where() const { return where_; }
  JsonKeys child(const std::string& key) const;

  int64_t size(const std::string& key, std::optional<int64_t> absent = {}, int64_t least = 1) const;
  double positive(const std::string& key, std::optional<double> absent = {}) const;
  bool flag(const std::string& key, bool absent) const;
  std::string text(const std::string& key, std::optional<std::string> absent = {}) const;

  /// A setting that changes the model in a way that is not built here.
  void refuse_unless(bool supported, const std::string& key, const std::string& expected) const;
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const;

 private:
  std::string where_;
  const nlohmann::json& object_;
};

}  // namespace tessera::models
