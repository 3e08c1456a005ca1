#include "tessera/config/accelerate/shown_value.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "tessera/base/letters.h"
#include "tessera/base/shown_urls.h"

namespace tessera::config::accelerate {
namespace {

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_of_name(char c) { return is_letter(c) || c == '_' || c == '-'; }
bool is_number(std::string_view value) {
  return !value.empty() && std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; });
}

/// Does a word of the name, "api_key" having two, end as secrets do?
bool is_secret(std::string_view name) {
  const auto upper = upper_case(name);
  for (const std::string_view end : {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "KEY",
                                     "CREDENTIAL", "AUTH", "AUTHORIZATION", "COOKIE"}) {
    for (auto at = upper.find(end); at != std::string::npos; at = upper.find(end, at + 1)) {
      auto after = at + end.size();
      if (after < upper.size() && upper[after] == 'S') ++after;
      if (after == upper.size() || !is_letter(upper[after])) return true;
    }
  }
  return false;
}

/// Hides the text from `begin` to the end of the value that begins there; returns its new end.
size_t hide_at(std::string& text, size_t begin) {
  if (begin >= text.size()) return begin;
  const bool quoted = text[begin] == '"' || text[begin] == '\'';
  const size_t first = quoted ? begin + 1 : begin;
  const auto end = std::min(
      quoted ? text.find(text[begin], first) : text.find_first_of(" ,;]}&\n", first), text.size());
  if (end == first) return end;
  text.replace(first, end - first, kHidden);
  return first + std::string_view(kHidden).size();
}

size_t behind_blanks(const std::string& text, size_t at) {
  return std::min(text.find_first_not_of(" \t", at), text.size());
}

/// Where the value of a name that ends at `end` begins: behind "=", ":" (perhaps with quotes and
/// blanks between them), or, of an option, a blank; npos if none follows.
size_t value_behind(const std::string& text, size_t end, bool is_option) {
  auto at = end;
  if (at < text.size() && (text[at] == '"' || text[at] == '\'')) ++at;
  const auto sign = behind_blanks(text, at);
  if (sign < text.size() && (text[sign] == '=' || text[sign] == ':')) {
    return text.compare(sign, 3, "://") == 0 ? std::string::npos : behind_blanks(text, sign + 1);
  }
  return is_option && sign > at ? sign : std::string::npos;
}

/// Hides what a name of a secret is set to within a text, as in a list of variables, in JSON, in a
/// header or a command: "NAME=value", "{"name": "value"}", "Name: value", "--name value".
void hide_named(std::string& text) {
  for (size_t at = 0; at < text.size();) {
    if (!is_of_name(text[at])) {
      ++at;
      continue;
    }
    auto end = at;
    while (end < text.size() && is_of_name(text[end])) ++end;
    const auto name = text.substr(at, end - at);
    const auto value =
        is_secret(name) ? value_behind(text, end, name.starts_with("--")) : std::string::npos;
    at = value == std::string::npos ? end : hide_at(text, value);
  }
}

/// Hides the word behind the schemes by which HTTP names credentials: "Bearer x", "Basic x".
void hide_schemes(std::string& text) {
  for (const std::string_view scheme : {"BEARER ", "BASIC "}) {
    for (auto at = upper_case(text).find(scheme); at != std::string::npos;
         at = upper_case(text).find(scheme, at + 1)) {
      if (at > 0 && is_letter(text[at - 1])) continue;
      hide_at(text, behind_blanks(text, at + scheme.size()));
    }
  }
}

/// Hides words that begin as the tokens of well-known places do.
void hide_tokens(std::string& text) {
  constexpr size_t kShortest = 16;
  for (const std::string_view begin : {"hf_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-",
                                       "sk-", "xoxb-", "xoxp-", "AKIA", "eyJ"}) {
    for (auto at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
      if (at > 0 && is_of_name(text[at - 1])) continue;
      auto end = at;
      while (end < text.size() && (is_of_name(text[end]) || text[end] == '.')) ++end;
      if (end - at < kShortest) continue;
      text.replace(at, end - at, kHidden);
    }
  }
}

}  // namespace

std::string shown_value(const std::string& name, std::string value) {
  if (is_secret(name) && !value.empty()) {
    const bool counts = lower_case(name).ends_with('s') && is_number(value);  // max_tokens
    return counts ? value : kHidden;
  }
  hide_schemes(value);
  hide_named(value);
  hide_tokens(value);
  return shown_urls(std::move(value));
}

}  // namespace tessera::config::accelerate
