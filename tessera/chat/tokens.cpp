#include "tessera/chat/tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/chat/characters.h"
#include "tessera/chat/value.h"

namespace tessera::chat {
namespace {

using Kind = Token::Kind;

/// "\r\n" and "\r" become "\n"; one newline at the end goes.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class Tokenizer {
 public:
  Tokenizer(std::string_view source, int& line)
      : source_(with_plain_newlines(source)), line_(line) {
    line_ = 1;
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) data();
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  /// Text up to the next tag, then the tag.
  void data() {
    size_t tag = source_.find('{', at_);
    while (tag != std::string::npos &&
           !(tag + 1 < source_.size() &&
             std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos)) {
      tag = source_.find('{', tag + 1);
    }
    const bool has_tag = tag != std::string::npos;
    if (!has_tag) tag = source_.size();
    const char kind = has_tag ? source_[tag + 1] : ' ';
    const char sign = has_tag && tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    add_data(tag, kind, sign);
    if (!has_tag) return;
    move_to(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') {
      comment();
    } else if (kind == '%' && skip_word("raw")) {
      raw();
    } else {
      add(kind == '%' ? Kind::block_begin : Kind::output_begin, "");
      code(kind == '%');
    }
  }

  /// The text from `at_` to `end`, without the blanks that the tag behind it takes away.
  void add_data(size_t end, char kind, char sign) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-' && kind != ' ') {
      text = text.substr(0, strip(text, Ends::right).end);
    } else if (sign != '+' && (kind == '%' || kind == '#')) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const auto indent = text.substr(line_begin);
      const bool only_blanks = strip(indent, Ends::both).begin == indent.size();
      if ((line_begin > 0 || line_begins_) && !indent.empty() && only_blanks)
        text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(Kind::data, std::string(text));
    move_to(end);
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("expected #} at the end of this comment");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    move_to(end + 2);
    after_tag(sign);
  }

  /// Behind {% raw %}: all up to {% endraw %} is text.
  void raw() {
    skip_blanks();
    if (peek() == '-') {
      move_to(at_ + 1);
      expect("%}");
      skip_blanks();
    } else {
      expect("%}");
    }
    line_begins_ = source_[at_ - 1] == '\n';
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos;
         tag = source_.find("{%", tag + 2)) {
      const size_t begin = at_;
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      const int line = line_;
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (!skip_word("endraw")) {
        at_ = begin;
        line_ = line;
        continue;
      }
      const size_t behind = at_;
      at_ = begin;
      line_ = line;
      add_data(tag, '%', sign);
      move_to(behind);
      skip_blanks();
      const char closing = peek();
      if (closing == '-' || closing == '+') move_to(at_ + 1);
      expect("%}");
      return after_tag(closing);
    }
    fail("expected {% endraw %} behind {% raw %}");
  }

  /// What the end of a block or comment takes away behind it.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_blanks();
    } else if (sign != '+' && peek() == '\n') {
      move_to(at_ + 1);
    }
    line_begins_ = source_[at_ - 1] == '\n';
  }

  /// Tokens up to the end of the tag, which counts only outside of brackets.
  void code(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    std::string open;
    for (;;) {
      skip_blanks();
      if (at_ >= source_.size()) fail(fmt::format("expected {} at the end of this tag", end));
      if (open.empty()) {
        const auto rest = std::string_view(source_).substr(at_);
        const bool has_sign = rest[0] == '-' || (rest[0] == '+' && is_block);
        if (rest.substr(has_sign ? 1 : 0).starts_with(end)) {
          const char sign = has_sign ? rest[0] : ' ';
          add(is_block ? Kind::block_end : Kind::output_end, "");
          move_to(at_ + end.size() + (has_sign ? 1 : 0));
          if (is_block) return after_tag(sign);
          if (sign == '-') skip_blanks();
          line_begins_ = source_[at_ - 1] == '\n';
          return;
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[at_];
    if (begins_name(c)) {
      size_t end = at_;
      while (end < source_.size() && (begins_name(source_[end]) || is_decimal(source_[end]))) ++end;
      add(Kind::name, source_.substr(at_, end - at_));
      move_to(end);
    } else if (is_decimal(c)) {
      number();
    } else if (c == '\'' || c == '"') {
      string();
    } else {
      symbol(open);
    }
  }

  void number() {
    std::string text;
    Kind kind = Kind::integer;
    size_t at = at_;
    const auto digits = [&] {
      while (at < source_.size() &&
             (is_decimal(source_[at]) ||
              (source_[at] == '_' && at + 1 < source_.size() && is_decimal(source_[at + 1])))) {
        if (source_[at] != '_') text += source_[at];
        ++at;
      }
    };
    const auto is_digit_at = [&](size_t place) {
      return place < source_.size() && is_decimal(source_[place]);
    };
    digits();
    if (at < source_.size() && source_[at] == '.' && is_digit_at(at + 1)) {
      kind = Kind::real;
      text += source_[at++];
      digits();
    }
    if (at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
      const size_t sign =
          at + 1 < source_.size() && (source_[at + 1] == '-' || source_[at + 1] == '+') ? 1 : 0;
      if (is_digit_at(at + 1 + sign)) {
        kind = Kind::real;
        text += source_.substr(at, 1 + sign);
        at += 1 + sign;
        digits();
      }
    }
    add(kind, text);
    move_to(at);
  }

  void string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(fmt::format("expected {} at the end of this string", quote));
    add(Kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  /// Python's escapes; an unknown one stays as it is.
  std::string unescaped(std::string_view text) {
    static constexpr std::string_view kShort = "abfnrtv\\'\"", kMeaning = "\a\b\f\n\r\t\v\\'\"";
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        plain += text[i];
        continue;
      }
      const char c = text[++i];
      const size_t simple = kShort.find(c);
      if (simple != std::string_view::npos) {
        plain += kMeaning[simple];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(plain, text.substr(i + 1, length), length, 16);
        i += length;
      } else if (c >= '0' && c <= '7') {
        size_t length = 1;
        while (length < 3 && i + length < text.size() && text[i + length] >= '0' &&
               text[i + length] <= '7')
          ++length;
        append_code(plain, text.substr(i, length), length, 8);
        i += length - 1;
      } else if (c != '\n') {
        plain += '\\';
        plain += c;
      }
    }
    return plain;
  }

  void append_code(std::string& plain, std::string_view digits, size_t length, uint32_t base) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    uint64_t code = 0;
    for (const char c : digits) {
      const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c;
      const size_t digit = kDigits.find(lower);
      if (digit >= base) digits = {};
      code = code * base + digit;
    }
    if (digits.size() != length || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail("expected an escape that stands for a character, as \\n or \\u00e4");
    }
    append_utf8(plain, static_cast<char32_t>(code));
  }

  void symbol(std::string& open) {
    static constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    auto text = std::string_view(source_).substr(at_, 2);
    if (std::find(std::begin(kPairs), std::end(kPairs), text) == std::end(kPairs))
      text = text.substr(0, 1);
    static constexpr std::string_view kSingle = "+-/*%~[](){}><=.:|,;";
    if (text.size() == 1 && kSingle.find(text[0]) == std::string_view::npos) {
      fail(fmt::format("expected an expression, got the character {:?}", text));
    }
    const size_t opening = std::string_view("([{").find(text[0]);
    const size_t closing = std::string_view(")]}").find(text[0]);
    if (opening != std::string_view::npos) open += ")]}"[opening];
    if (closing != std::string_view::npos) {
      if (open.empty() || open.back() != text[0]) fail(fmt::format("expected no {} here", text));
      open.pop_back();
    }
    add(Kind::symbol, std::string(text));
    move_to(at_ + text.size());
  }

  char peek() const { return at_ < source_.size() ? source_[at_] : ' '; }

  void skip_blanks() {
    while (at_ < source_.size()) {
      const auto character = character_at(source_, at_);
      if (!is_space(character.code)) return;
      move_to(at_ + character.bytes);
    }
  }

  /// Behind blanks, is the next name `word`? Then it is passed.
  bool skip_word(std::string_view word) {
    size_t at = at_;
    while (at < source_.size() && is_space(static_cast<uint8_t>(source_[at]))) ++at;
    const auto rest = std::string_view(source_).substr(at);
    if (!rest.starts_with(word)) return false;
    if (rest.size() > word.size() &&
        (begins_name(rest[word.size()]) || is_decimal(rest[word.size()])))
      return false;
    move_to(at + word.size());
    return true;
  }

  void expect(std::string_view text) {
    if (!std::string_view(source_).substr(at_).starts_with(text))
      fail(fmt::format("expected {}", text));
    move_to(at_ + text.size());
  }

  void move_to(size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    at_ = at;
  }

  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  [[noreturn]] void fail(const std::string& message) { throw Failure(message); }

  std::string source_;
  int& line_;
  size_t at_ = 0;
  bool line_begins_ = true;  ///< the tag before ended with a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, int& line) {
  return Tokenizer(source, line).run();
}

}  // namespace tessera::chat
