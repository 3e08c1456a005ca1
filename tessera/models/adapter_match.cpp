#include "tessera/models/adapter_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/spec.h"

namespace tessera::models {
namespace {

/// The name that files have for the module of a block's parameter.
std::string stored_module(const FamilySpec& family, const std::string& parameter,
                          const std::string& module) {
  for (const auto& fused : family.fused) {
    if (std::ranges::count(fused.parts, parameter) == 0) continue;
    return fused.stored.substr(0, fused.stored.rfind('.'));
  }
  return module;
}

/// Named::in_tensor of a block's parameter. In memory every family's mixture is called mlp.
std::string tensor_of_experts(const ModelShape& shape, const ParameterSpec& parameter,
                              const std::string& prefix) {
  if (!parameter.of_expert || parameter.shape.size() != 2) return "";
  const bool is_down =
      parameter.name.ends_with("." + spec_of(shape.family).mixture(shape).down + ".weight");
  return fmt::format("{}mlp.experts.{}", prefix, is_down ? "down_proj" : "gate_up_proj");
}

/// Patterns come with adapters of others. libstdc++'s other way to match takes a time that grows as
/// 2^n with some patterns, and its stack with the text; this one knows no back-references.
#ifdef __GLIBCXX__
constexpr auto kBoundedTime = std::regex_constants::__polynomial;
#else
constexpr std::regex_constants::syntax_option_type kBoundedTime{};
#endif

bool is_name(std::string_view entry) {
  return std::ranges::all_of(entry, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace

std::vector<Named> parameters_by_path(const ModelShape& shape) {
  const auto& family = spec_of(shape.family);
  const auto specs = family.parameters(shape);
  std::vector<Named> all;
  const auto add = [&](const ParameterSpec& parameter, const std::string& prefix) -> Named& {
    const auto dot = parameter.name.rfind('.');
    const auto module = parameter.name.substr(0, dot);
    all.push_back({.path = prefix + module,
                   .stored = prefix + stored_module(family, parameter.name, module),
                   .kind = parameter.name.substr(dot + 1),
                   .in_tensor = "",
                   .shape = parameter.shape,
                   .layer = std::nullopt,
                   .division = parameter.division,
                   .of_expert = parameter.of_expert,
                   .of_router = parameter.of_router});
    return all.back();
  };
  for (const auto& parameter : specs.embedding) add(parameter, "").embedding = true;
  int64_t layer = 0;
  for (const auto& alike : alike_layers(shape)) {
    const auto block = family.parameters(alike.shape).block;
    for (const int64_t end = layer + alike.count; layer < end; ++layer) {
      const auto prefix = fmt::format("{}{}.", specs.block_prefix, layer);
      for (const auto& parameter : block) {
        auto& named = add(parameter, prefix);
        named.layer = layer;
        named.in_tensor = tensor_of_experts(shape, parameter, prefix);
      }
    }
  }
  for (const auto& parameter : specs.head) add(parameter, "");
  return all;
}

std::regex compiled(const std::string& member, const std::string& entry, const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::optimize | kBoundedTime);
  } catch (const std::regex_error&) {
    user_error("adapter.{}: expected a name of modules or a regular expression, got '{}'", member,
               printable(entry));
  }
}

Entry::Entry(const std::string& member, const std::string& text) : text_(text) {
  auto lower = text;
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  all_linear_ = member == "targets" && lower == "all-linear";
  if (!all_linear_ && !is_name(text)) pattern_ = compiled(member, text, text);
}

bool Entry::matches(const Named& parameter) const {
  if (all_linear_) return parameter.layer.has_value();
  return matches(parameter.path) || matches(parameter.stored) || is_path_of(parameter);
}

bool Entry::is_path_of(const Named& parameter) const {
  return text_ == parameter.path || text_ == parameter.stored ||
         (!text_.empty() && text_ == parameter.in_tensor);
}

bool Entry::matches(const std::string& path) const {
  if (pattern_) return std::regex_match(path, *pattern_);
  return path == text_ || path.ends_with("." + text_);
}

}  // namespace tessera::models
