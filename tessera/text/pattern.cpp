#include "tessera/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

std::string message_of_pcre2(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// What one search needs beside the expression; freed with it.
struct Search {
  explicit Search(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~Search() {
    pcre2_match_data_free(data);
    if (context != nullptr) pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// More stack than the 32 KiB that compiled expressions find on the machine's.
  void widen() {
    stack = pcre2_jit_stack_create(size_t{64} << 10, size_t{64} << 20, nullptr);
    context = pcre2_match_context_create(nullptr);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }

  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

}  // namespace

struct Pattern::Compiled {
  std::string where, expression;
  pcre2_code* code = nullptr;

  ~Compiled() { pcre2_code_free(code); }

  int match(std::string_view text, size_t from, Search& search) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int result = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, search.data,
                             search.context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && search.stack == nullptr) {
      search.widen();
      result = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, search.data,
                           search.context);
    }
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
      user_error("{}: the expression {} gave up on a text of {} bytes: {}", where,
                 in_one_line(expression), text.size(), message_of_pcre2(result));
    }
    return result;
  }
};

Pattern::Pattern(const std::string& where, std::string_view expression)
    : compiled_(std::make_unique<Compiled>()) {
  compiled_->where = where;
  compiled_->expression = expression;
  const auto translated = pcre2_syntax(where, expression);
  int error = 0;
  size_t at = 0;
  compiled_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, nullptr);
  if (compiled_->code == nullptr) {
    user_error("{}: expected a regular expression, got {}: {}", where, in_one_line(expression),
               message_of_pcre2(error));
  }
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // without it the interpreter does it
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

void Pattern::find_all(std::string_view text, std::vector<Range>& matches) const {
  Search search(compiled_->code);
  const size_t* found = pcre2_get_ovector_pointer(search.data);
  for (size_t from = 0; from < text.size();) {
    if (compiled_->match(text, from, search) < 0) return;
    // \K can put the begin of a match behind its end.
    const size_t begin = found[0], end = std::max(found[0], found[1]);
    if (begin < end) {
      matches.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      from = end;
    } else {
      from = end + 1;
      while (from < text.size() && (static_cast<uint8_t>(text[from]) & 0xC0) == 0x80) ++from;
    }
  }
}

bool Pattern::matches(std::string_view text) const {
  Search search(compiled_->code);
  return compiled_->match(text, 0, search) >= 0;
}

}  // namespace tessera::text
