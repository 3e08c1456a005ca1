#include "tessera/records/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/quoted.h"
#include "tessera/base/strict_json.h"
#include "tessera/base/text.h"

namespace tessera::records {
namespace {

/// Builds the value from the parser's events. An object's entries are collected first: an
/// ordered_json looks for a key among all others, and copies its values when it grows.
class RowBuilder : public nlohmann::json_sax<Json> {
 public:
  RowBuilder(std::string_view text, ParsedJson& parsed) : text_(text), parsed_(parsed) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") != text.npos) return add(value);
    parsed_.error = fmt::format("expected whole numbers of at most 64 bits, got {}", text);
    return false;
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    open_.back().entries.emplace_back(std::move(name), nullptr);
    return true;
  }

  bool end_object() override {
    auto& entries = open_.back().entries;
    std::vector<std::string_view> keys;
    keys.reserve(entries.size());
    for (const auto& entry : entries) keys.push_back(entry.first);
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end()) {
      parsed_.error =
          fmt::format("the key {} stands twice in one object", quoted(printable(*twice)));
      return false;
    }
    auto& object = open_.back().value.get_ref<Json::object_t&>();
    object.reserve(entries.size());
    for (auto& [name, value] : entries) object.emplace_back(std::move(name), std::move(value));
    return close();
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The parser counts from 1, up to the byte that it did not expect.
    parsed_.byte = std::min(position - std::min<size_t>(position, 1), text_.size());
    parsed_.error = reason(error.what());
    return false;
  }

 private:
  struct Open {
    Json value;
    std::vector<std::pair<std::string, Json>> entries;
  };

  std::string reason(std::string_view what) const {
    const auto tells = [&](std::string_view part) { return what.find(part) != what.npos; };
    if (tells("surrogate"))
      return "expected a whole surrogate pair (\\ud83d\\ude00), got half of one";
    if (tells("UTF-8")) return "expected UTF-8, got other bytes";
    if (tells("out of range") || tells("out_of_range")) return "a number is too large";
    if (tells("control character"))
      return "expected control characters in a text to be escaped (\\n, \\u0000), got one as it is";
    if (tells("missing closing quote")) return "expected a closing quote, got the end of the text";
    if (tells("unexpected end of input")) return "expected more of the JSON, got its end";
    if (tells("forbidden character after backslash") || tells("'\\u' must be followed"))
      return "expected one of JSON's escapes behind a backslash, got another";
    return fmt::format("expected JSON, got {}", quoted(printable(text_.substr(parsed_.byte, 1))));
  }

  bool add(Json&& value) {
    if (open_.empty()) {
      parsed_.value = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      open_.back().entries.back().second = std::move(value);
    }
    return true;
  }

  bool open(Json&& value) {
    if (static_cast<int>(open_.size()) >= kMaxJsonDepth) {
      parsed_.error = fmt::format("expected at most {} levels of nesting, got more", kMaxJsonDepth);
      return false;
    }
    open_.push_back({std::move(value), {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_;
  ParsedJson& parsed_;
  std::vector<Open> open_;
};

}  // namespace

ParsedJson parse_row_json(std::string_view text) {
  ParsedJson parsed;
  // The parser takes a NUL for the end of the text and would accept anything after it.
  parsed.byte = text.find('\0');
  if (parsed.byte != text.npos) {
    parsed.error = "expected JSON, got a NUL byte";
    return parsed;
  }
  parsed.byte = 0;
  RowBuilder builder(text, parsed);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return parsed;
}

}  // namespace tessera::records
