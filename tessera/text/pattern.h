// Regular expressions of tokenizer files, as the library reads them that made the files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Bytes [begin, end) of a text.
struct Range {
  uint32_t begin = 0, end = 0;
  bool operator==(const Range&) const = default;
};

/// A compiled expression (PCRE2, just-in-time, UTF-8). Written in Oniguruma's syntax for Ruby, in
/// which tokenizer.json has them: `^` and `$` are of lines, (?m) lets the dot take line ends, `\h` is
/// a hexadecimal digit, classes nest and intersect ([a-z&&[^b]]), X{1,3}+ repeats. `\s` `\w` `\d` and
/// scripts are Unicode's properties whatever version of PCRE2 is there.
/// Threads may share one.
class Pattern {
 public:
  /// UserError if it cannot be compiled; `where` names the file and the key.
  Pattern(const std::string& where, std::string_view expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Appends the matches in valid UTF-8, from left to right, none of which is empty. UserError if
  /// the expression backtracks without end.
  void find_all(std::string_view text, std::vector<Range>& matches) const;
  bool matches(std::string_view text) const;  ///< anywhere in it

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

/// An expression of that syntax in PCRE2's.
std::string pcre2_syntax(const std::string& where, std::string_view expression);

/// A class of the characters that Rust takes for `\w`, by which `tokenizers` tells single words.
std::string_view word_class();

}  // namespace tessera::text
