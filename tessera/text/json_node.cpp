#include "tessera/text/json_node.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {

using nlohmann::json;

json parse_json(const std::filesystem::path& path, std::string_view text) {
  // The parser takes a NUL for the end of the text and would accept anything after it.
  if (text.find('\0') != text.npos) user_error("{}: a NUL byte in its JSON", path.string());
  auto parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded())
    user_error("{}: expected JSON in UTF-8, got something else, or half of it", path.string());
  return parsed;
}

namespace {

/// A value as an error shows it: in one line, and not all of a vocabulary.
std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  auto text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "..";
  return text;
}

std::string joined(std::initializer_list<std::string_view> words) {
  std::string all;
  for (const auto word : words) {
    if (!all.empty()) all += ", ";
    all += word;
  }
  return all;
}

}  // namespace

void JsonNode::refuse(std::string_view expected) const {
  user_error("{}: expected {}, got {}", where_, expected, shown(*value_));
}

JsonNode JsonNode::operator[](std::string_view key) const {
  static const json kNull;
  expect_object();
  const auto found = value_->find(key);
  return {fmt::format("{}.{}", where_, in_one_line(key)), found == value_->end() ? kNull : *found};
}

JsonNode JsonNode::operator[](size_t index) const {
  return {fmt::format("{}[{}]", where_, index), (*value_)[index]};
}

void JsonNode::expect_object() const {
  if (!value_->is_object()) refuse("an object");
}

void JsonNode::expect_array() const {
  if (!value_->is_array()) refuse("a list");
}

void JsonNode::expect_keys(std::initializer_list<std::string_view> known) const {
  expect_object();
  for (const auto& [key, value] : value_->items()) {
    if (key != "type" && std::find(known.begin(), known.end(), key) == known.end())
      user_error("{}: the key {} is not known here (known are {})", where_,
                 json(key).dump(-1, ' ', true), joined(known));
  }
}

std::string JsonNode::text() const {
  if (!value_->is_string()) refuse("a text");
  return value_->get<std::string>();
}

std::string JsonNode::text_or(std::string_view otherwise) const {
  return is_null() ? std::string(otherwise) : text();
}

bool JsonNode::truth() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

bool JsonNode::truth_or(bool otherwise) const { return is_null() ? otherwise : truth(); }

double JsonNode::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

uint32_t JsonNode::count(uint32_t most) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > most)
    refuse(fmt::format("a whole number from 0 to {}", most));
  return value_->get<uint32_t>();
}

size_t JsonNode::one_of(std::initializer_list<std::string_view> choices) const {
  if (value_->is_string()) {
    const auto found =
        std::find(choices.begin(), choices.end(), value_->get_ref<const std::string&>());
    if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  }
  refuse("one of " + joined(choices));
}

std::string JsonNode::type() const { return (*this)["type"].text(); }

void each_step(const JsonNode& node, std::string_view list,
               const std::function<void(const JsonNode&)>& each, int depth) {
  if (node.is_null()) return;
  if (depth > 16) user_error("{}: its sequences are nested too deep", node.where());
  if (node.type() != "Sequence") return each(node);
  node.expect_keys({list});
  const auto steps = node[list];
  steps.expect_array();
  for (size_t i = 0; i < steps.size(); ++i) each_step(steps[i], list, each, depth + 1);
}

}  // namespace tessera::text
