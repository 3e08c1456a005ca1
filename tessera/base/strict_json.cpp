#include "tessera/base/strict_json.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

using nlohmann::json;

/// Builds the value from the parser's events. (The callback that json::parse takes makes it walk
/// an object's entries anew for each one.)
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(const std::filesystem::path& path, int max_depth) : path_(path), max_depth_(max_depth) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [entry, is_new] =
        open_.back()->get_ref<json::object_t&>().emplace(std::move(name), nullptr);
    if (!is_new) {
      user_error("{}: the key {} stands twice in its JSON", path_.string(),
                 json(entry->first).dump());
    }
    value_of_key_ = &entry->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    if (error.id == kNumberTooLarge) {
      user_error("{}: a number in its JSON is too large", path_.string());
    }
    throw JsonSyntaxError(path_, position);
  }

 private:
  /// Puts a value where it belongs. A pointer to it holds until it is closed: only the innermost
  /// open one grows.
  json* place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (!open_.back()->is_array()) {
      *value_of_key_ = std::move(value);
      return value_of_key_;
    }
    auto& list = open_.back()->get_ref<json::array_t&>();
    list.push_back(std::move(value));
    return &list.back();
  }

  bool add(json&& value) { return place(std::move(value)) != nullptr; }

  bool open(json&& value) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      user_error("{}: its JSON is nested too deep", path_.string());
    }
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::filesystem::path& path_;
  int max_depth_;
  json root_;
  std::vector<json*> open_;
  json* value_of_key_ = nullptr;
};

}  // namespace

json parse_strict_json(const std::filesystem::path& path, std::string_view text, int max_depth) {
  // The parser takes a NUL for the end of the text and would accept anything after it.
  if (text.find('\0') != std::string_view::npos)
    user_error("{}: a NUL byte in its JSON", path.string());
  Builder builder(path, max_depth);
  json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace tessera
