#include "tessera/config/yaml_document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

struct NoEvents : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Is there a second document? YAML::LoadAll cannot tell: it finds documents without end in some
/// texts that are no YAML.
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

}  // namespace

YAML::Node parse_yaml(const std::string& file, const std::string& text) {
  YAML::Node document;
  bool second = false;
  try {
    document = YAML::Load(text);
    second = has_second_document(text);
  } catch (const YAML::Exception& error) {
    auto reason = error.msg;  // it repeats what it does not know, a line feed perhaps
    std::ranges::replace_if(
        reason, [](unsigned char c) { return c < ' '; }, ' ');
    if (error.mark.is_null()) user_error("{}: expected YAML: {}", file, reason);
    user_error("{}:{}: expected YAML: {} (column {})", file, error.mark.line + 1, reason,
               error.mark.column + 1);
  }
  if (second) user_error("{}: expected one YAML document, got another after it", file);
  return document;
}

RawValue raw_value(const YAML::Node& node) {
  using Kind = RawValue::Kind;
  if (node.IsNull()) return {};
  // yaml-cpp tags a scalar in quotes (or a block) with "!", a plain one with "?".
  if (node.IsScalar())
    return {.kind = Kind::scalar, .text = node.Scalar(), .quoted = node.Tag() == "!"};
  if (node.IsMap()) {
    RawValue raw{.kind = Kind::map, .text = "a mapping"};
    for (const auto& entry : node) {
      const bool plain = entry.first.IsScalar() && entry.second.IsScalar();
      if (!plain) return {.kind = Kind::other, .text = "a mapping with more than names and values"};
      raw.entries.emplace_back(entry.first.Scalar(), entry.second.Scalar());
    }
    return raw;
  }
  RawValue raw{.kind = Kind::list};
  for (const auto& item : node) {
    if (item.IsNull()) return {.kind = Kind::other, .text = "a list with an empty item"};
    if (!item.IsScalar()) return {.kind = Kind::other, .text = "a list inside the list"};
    raw.items.push_back(item.Scalar());
  }
  return raw;
}

std::string line_of(const std::string& file, const YAML::Node& node) {
  return fmt::format("{}:{}", file, node.Mark().line + 1);
}

}  // namespace tessera::config
