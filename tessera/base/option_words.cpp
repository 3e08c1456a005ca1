#include "tessera/base/option_words.h"

#include <cctype>
#include <string_view>

namespace tessera {
namespace {

bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Part of a path, of a dotted key or of a quoted value.
bool joins(char c) { return std::string_view("./'-=\"").find(c) != std::string_view::npos; }

}  // namespace

std::string with_options_renamed(
    const std::string& message,
    const std::function<std::string(const std::string& word)>& renamed) {
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
    const auto name = named && !joined ? renamed(word) : "";
    out += name.empty() ? word : name;
    after_set = after_set || word == "set";
    begin = end;
  }
  return out;
}

}  // namespace tessera
