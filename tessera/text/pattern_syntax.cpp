// From Oniguruma's syntax to PCRE2's.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <map>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/text/pattern.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

// Members of a class, as the `tokenizers` package takes them (Oniguruma's, whose tables differ from PCRE2's).
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWords = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
/// A \w that stands by itself has a few numbers of Latin-1, too.
constexpr std::string_view kWordsAlone = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xb2\xb3\xb9\xbc-\xbe)";

/// [:name:] in a class; nothing: as PCRE2 has it.
std::optional<std::string_view> posix_class(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kMembers{
      {"alpha", R"(\p{Alphabetic})"},
      {"alnum", R"(\p{Alphabetic}\p{Nd})"},
      {"upper", R"(\p{Uppercase})"},
      {"lower", R"(\p{Lowercase})"},
      {"punct", R"(\p{P}\p{S})"},
      {"space", kSpaces},
      {"word", kWords},
      {"graph", R"([:graph:]\x{61c}\x{180e}\x{2066}-\x{2069})"},
      {"print", R"([:print:]\x{61c}\x{2066}-\x{2069})"}};
  const auto found = kMembers.find(name);
  return found == kMembers.end() ? std::nullopt : std::optional(found->second);
}

bool compiles(const std::string& expression) {
  int error = 0;
  size_t at = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

class Translation {
 public:
  Translation(const std::string& where, std::string_view from) : where_(where), from_(from) {}

  std::string all() {
    while (at_ < from_.size()) one();
    return std::move(to_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    user_error("{}: {} of the expression {} is not known here", where_, in_one_line(what),
               in_one_line(from_));
  }

  bool next_is(std::string_view text) const { return from_.substr(at_).starts_with(text); }

  void one() {
    const char letter = from_[at_];
    if (letter == '\\') {
      atom_ = to_.size();
      to_ += escape(false);
    } else if (letter == '[') {
      atom_ = to_.size();
      to_ += character_class(0);
    } else if (letter == '(') {
      groups_.push_back(to_.size());
      open_group();
    } else if (letter == ')') {
      atom_ = groups_.empty() ? to_.size() : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      to_ += from_[at_++];
    } else if (letter == '{') {
      interval();
    } else {
      if (letter != '?' && letter != '*' && letter != '+' && letter != '|' &&
          (static_cast<uint8_t>(letter) & 0xC0) != 0x80) {
        atom_ = to_.size();
      }
      to_ += from_[at_++];
    }
  }

  /// `(`, and of `(?flags` the flags: Ruby's m is s elsewhere.
  void open_group() {
    to_ += from_[at_++];
    if (!next_is("?")) return;
    size_t end = at_ + 1;
    while (end < from_.size() &&
           (from_[end] == 'i' || from_[end] == 'm' || from_[end] == 'x' || from_[end] == '-')) {
      ++end;
    }
    const bool flags = end < from_.size() && (from_[end] == ':' || from_[end] == ')');
    if (!flags) return;
    for (; at_ < end; ++at_) to_ += from_[at_] == 'm' ? 's' : from_[at_];
    if (from_[at_] != ')') return;
    groups_.pop_back();
    to_ += from_[at_++];
  }

  /// {n,m}: a plus behind it repeats the whole, where PCRE2 would let it keep what it has.
  void interval() {
    const size_t end = from_.find('}', at_);
    const auto inside = from_.substr(at_ + 1, end == from_.npos ? 0 : end - at_ - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789,") != inside.npos) {
      to_ += "\\{";
      ++at_;
      return;
    }
    to_ += inside[0] == ',' ? fmt::format("{{0{}}}", inside) : fmt::format("{{{}}}", inside);
    at_ = end + 1;
    if (!next_is("+")) return;
    to_.insert(atom_, "(?:");
    to_ += ')';
  }

  /// The escape at the place, as it stands in PCRE2's expressions or, `inside`, in its classes.
  std::string escape(bool inside) {
    if (at_ + 1 >= from_.size()) refuse("the \\ at the end");
    const char letter = from_[at_ + 1];
    const auto made = [&](std::string_view members, bool negated = false) {
      at_ += 2;
      return inside ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
    };
    switch (letter) {
      case 's':
        return made(kSpaces);
      case 'S':
        return made(kNoSpaces);
      case 'w':
        return made(inside ? kWords : kWordsAlone);
      case 'W':
        if (inside) refuse("\\W in a class");
        return made(kWordsAlone, true);
      case 'd':
        return made("\\p{Nd}");
      case 'D':
        return made("\\P{Nd}");
      case 'h':
        return made("0-9a-fA-F");
      case 'H':
        if (inside) refuse("\\H in a class");
        return made("0-9a-fA-F", true);
      case 'b':
      case 'B':
        return boundary(inside);
      case 'p':
      case 'P':
        return property();
      case 'u': {
        const auto digits = from_.substr(at_ + 2, 4);
        if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
          refuse("\\u without four digits");
        at_ += 6;
        return fmt::format("\\x{{{}}}", digits);
      }
      default:
        break;
    }
    constexpr std::string_view kSame = "tnrfvaexAzZGRXKNO0123456789k";
    if (std::isalnum(static_cast<uint8_t>(letter)) != 0 &&
        kSame.find(letter) == std::string_view::npos) {
      refuse(fmt::format("\\{}", letter));
    }
    if (letter == 'v') return at_ += 2, "\\x0b";  // one character, where PCRE2 means a class
    const size_t begin = at_;
    at_ += 2;
    return std::string(from_.substr(begin, 2));
  }

  std::string boundary(bool inside) {
    const char letter = from_[at_ + 1];
    at_ += 2;
    if (inside) {
      if (letter == 'B') refuse("\\B in a class");
      return "\\x08";
    }
    const auto word = fmt::format("[{}]", kWordsAlone);
    const bool at_edge = letter == 'b';
    return fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, at_edge ? "!" : "=",
                       at_edge ? "=" : "!");
  }

  /// \p{Han} is the script itself, not its extensions, which newer versions of PCRE2 mean.
  std::string property() {
    const char letter = from_[at_ + 1];
    const size_t begin = at_;
    if (at_ + 2 >= from_.size()) refuse("\\p without a name");
    if (from_[at_ + 2] != '{') {
      at_ += 3;
      return std::string(from_.substr(begin, 3));
    }
    const size_t end = from_.find('}', at_);
    if (end == from_.npos) refuse("\\p{ without its }");
    auto name = from_.substr(at_ + 3, end - at_ - 3);
    at_ = end + 1;
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    std::string known(name);
    if (name.size() > 2 && compiles(fmt::format("\\p{{sc:{}}}", name))) known = "sc:" + known;
    return fmt::format("\\{}{{{}{}}}", letter, negated ? "^" : "", known);
  }

  /// [..] with what it holds in alternatives and conditions, where PCRE2 has no nested classes.
  std::string character_class(int depth) {
    if (depth > 16) refuse("a class nested so deep");
    ++at_;
    const bool negated = next_is("^");
    if (negated) ++at_;
    std::vector<std::string> conditions;  // of &&, all must hold
    std::string members, alternatives;
    const auto end_of_operand = [&] {
      auto operand = alternatives;
      if (!members.empty()) {
        if (!operand.empty()) operand += '|';
        operand += "[" + members + "]";
      }
      conditions.push_back("(?:" + operand + ")");
      members.clear();
      alternatives.clear();
    };
    for (bool first = true;; first = false) {
      if (at_ >= from_.size()) refuse("a [ without its ]");
      if (next_is("]") && !first) break;
      class_member(depth, members, alternatives, end_of_operand);
    }
    ++at_;
    if (conditions.empty() && alternatives.empty())
      return fmt::format("[{}{}]", negated ? "^" : "", members);
    end_of_operand();
    std::string all;
    for (size_t i = 0; i + 1 < conditions.size(); ++i) all += "(?=" + conditions[i] + ")";
    all += conditions.back();
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : fmt::format("(?:{})", all);
  }

  template <typename EndOfOperand>
  void class_member(int depth, std::string& members, std::string& alternatives,
                    const EndOfOperand& end_of_operand) {
    if (next_is("&&")) {
      at_ += 2;
      end_of_operand();
    } else if (next_is("[:")) {
      const size_t end = from_.find(":]", at_);
      if (end == from_.npos) refuse("a [: without its :]");
      const auto name = from_.substr(at_ + 2, end - at_ - 2);
      const bool negated = name.starts_with('^');
      const auto known = posix_class(negated ? name.substr(1) : name);
      if (known && negated) {
        if (!alternatives.empty()) alternatives += '|';
        alternatives += fmt::format("[^{}]", *known);
      } else {
        members += known.value_or(from_.substr(at_, end + 2 - at_));
      }
      at_ = end + 2;
    } else if (next_is("[")) {
      if (!alternatives.empty()) alternatives += '|';
      alternatives += character_class(depth + 1);
    } else if (next_is("\\")) {
      members += escape(true);
    } else {
      if (next_is("]")) members += '\\';  // as the first member it is itself
      members += from_[at_++];
    }
  }

  const std::string& where_;
  std::string_view from_;
  std::string to_;
  size_t at_ = 0, atom_ = 0;    // where the last thing that can be repeated began
  std::vector<size_t> groups_;  // where those that are open began
};

}  // namespace

std::string pcre2_syntax(const std::string& where, std::string_view expression) {
  return Translation(where, expression).all();
}

std::string_view word_class() {
  static const std::string text = fmt::format("[{}\\x{{200c}}\\x{{200d}}]", kWords);
  return text;
}

}  // namespace tessera::text
