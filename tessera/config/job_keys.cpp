#include "tessera/config/job_keys.h"

#include <cctype>
#include <map>
#include <string_view>

#include "tessera/config/fields.h"

namespace tessera::config {
namespace {

/// Dotted keys by their last part; "" where several sections have it.
std::map<std::string, std::string> keys_by_name() {
  std::map<std::string, std::string> keys;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto [found, is_new] = keys.try_emplace(field.name(), field.key);
      if (!is_new) found->second.clear();
    }
  }
  return keys;
}

bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Part of a path, of a dotted key or of a quoted value.
bool joins(char c) { return std::string_view("./'-=\"").find(c) != std::string_view::npos; }

}  // namespace

std::string with_job_keys(const std::string& message) {
  static const auto keys = keys_by_name();
  std::string out;
  bool after_set = false;
  for (size_t begin = 0; begin < message.size();) {
    size_t end = begin;
    while (end < message.size() && of_word(message[end])) ++end;
    if (end == begin) {
      after_set = after_set && message[begin] != ';';
      out += message[begin++];
      continue;
    }
    const auto word = message.substr(begin, end - begin);
    const char next = end < message.size() ? message[end] : ' ';
    const char after_next = end + 1 < message.size() ? message[end + 1] : ' ';
    const bool joined = (begin > 0 && joins(message[begin - 1])) ||
                        (joins(next) && (of_word(after_next) || next != '.'));
    const bool named =
        word.find('_') != std::string::npos || (begin == 0 && next == ':') || after_set;
    const auto key = keys.find(word);
    const bool option = named && !joined && key != keys.end() && !key->second.empty();
    out += option ? key->second : word;
    after_set = after_set || word == "set";
    begin = end;
  }
  return out;
}

}  // namespace tessera::config
