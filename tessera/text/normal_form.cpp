#include "tessera/text/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/character_sets.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

/// A character of the result, and how many more (or fewer, below 0) characters of the source than
/// one precede the next: as the made offsets are counted.
struct Step {
  char32_t code = 0;
  int change = 0;  ///< 0: stands for one of the source; 1: one more; below 0: took so many more
};

constexpr char32_t kHangul = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kVowels = 21, kTails = 28, kLeads = 19;

int combining_class(char32_t code) {
  if (!is_reordered(code)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class;
}

std::u32string decomposed(char32_t code, bool compatible) {
  if (!is_decomposed(code)) return {code};
  std::array<utf8proc_int32_t, 32> found{};
  int last = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), found.data(),
                                             found.size(), options, &last);
  if (count <= 0 || count > static_cast<utf8proc_ssize_t>(found.size())) return {code};
  return {found.begin(), found.begin() + count};
}

/// Which two characters are composed into which. utf8proc has no function for a pair: they are read
/// off the canonical decompositions, whose last character is the second of a pair.
std::unordered_map<uint64_t, char32_t> make_compositions() {
  std::unordered_map<uint64_t, char32_t> pairs;
  for (char32_t code = 0xC0; code < 0x20000; ++code) {
    if (code >= 0x3400 && code < 0xF900) continue;  // ideographs and Hangul, by rule
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->decomp_type != 0) continue;
    auto parts = decomposed(code, false);
    if (parts.size() < 2) continue;
    std::vector<utf8proc_int32_t> first(parts.begin(), parts.end() - 1),
        whole(parts.begin(), parts.end());
    const auto composed = [](std::vector<utf8proc_int32_t>& codes) {
      return utf8proc_normalize_utf32(
          codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    };
    if (composed(whole) != 1 || static_cast<char32_t>(whole[0]) != code) continue;  // never made
    if (composed(first) != 1) continue;
    pairs[uint64_t{static_cast<uint32_t>(first[0])} << 32 | parts.back()] = code;
  }
  return pairs;
}

std::optional<char32_t> composition(char32_t a, char32_t b) {
  if (a >= kLead && a < kLead + kLeads && b >= kVowel && b < kVowel + kVowels)
    return kHangul + ((a - kLead) * kVowels + (b - kVowel)) * kTails;
  if (a >= kHangul && a < kHangul + kLeads * kVowels * kTails && (a - kHangul) % kTails == 0 &&
      b > kTail && b < kTail + kTails) {
    return a + (b - kTail);
  }
  static const auto pairs = make_compositions();
  const auto found = pairs.find(uint64_t{a} << 32 | b);
  return found == pairs.end() ? std::nullopt : std::optional(found->second);
}

/// Marks behind a letter stand in the order of their classes.
void order_marks(std::vector<Step>& steps, size_t from) {
  if (steps.size() - from < 2) return;
  std::stable_sort(steps.begin() + static_cast<std::ptrdiff_t>(from), steps.end(),
                   [](const Step& a, const Step& b) {
                     return combining_class(a.code) < combining_class(b.code);
                   });
}

std::vector<Step> decompose(std::string_view text, bool compatible) {
  std::vector<Step> steps;
  steps.reserve(text.size());
  size_t marks = 0;  // where those that are not ordered yet begin
  const auto put = [&](char32_t code, int change) {
    const bool starts = code < 0x300 || combining_class(code) == 0;
    if (starts) order_marks(steps, marks);
    steps.push_back({code, change});
    if (starts) marks = steps.size();
  };
  for (size_t at = 0; at < text.size();) {
    const auto character = character_at(text, at);
    at += character.bytes;
    if (character.code < 0xA0) {
      put(character.code, 0);
      continue;
    }
    int change = 0;
    for (const char32_t code : decomposed(character.code, compatible))
      put(code, std::exchange(change, 1));
  }
  order_marks(steps, marks);
  return steps;
}

void compose(std::vector<Step>& steps) {
  size_t kept = 0;
  std::optional<size_t> starter;
  int last_class = -1;  // of what stands behind the starter; -1: nothing does
  for (const auto step : steps) {
    const int its_class = combining_class(step.code);
    if (starter && (last_class < its_class || last_class == -1)) {
      if (const auto made = composition(steps[*starter].code, step.code)) {
        steps[*starter] = {*made, steps[*starter].change + step.change - 1};
        continue;
      }
    }
    if (its_class == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = its_class;
    }
    steps[kept++] = step;
  }
  steps.resize(kept);
}

/// Gives each character what it stands for.
void put_steps(const std::vector<Step>& steps, TrackedText& text) {
  TrackedText changed;
  changed.tracked = text.tracked;
  changed.text.reserve(text.text.size());
  size_t at = 0;  // in the source
  const auto skip = [&] {
    if (at < text.text.size()) at += character_at(text.text, at).bytes;
  };
  for (const auto& step : steps) {
    const bool more = step.change > 0;
    Range origin;
    if (!more && at < text.text.size()) origin = text.origin_of(at);
    if (more && at > 0) origin = text.origin_of(at - 1);
    changed.put(step.code, origin);
    if (more) continue;
    for (int i = 0; i <= -step.change; ++i) skip();
  }
  text = std::move(changed);
}

}  // namespace

bool is_stable(std::string_view text, NormalForm form) {
  if (form != NormalForm::nfc) return is_ascii(text);
  return std::all_of(text.begin(), text.end(),
                     [](char byte) { return static_cast<uint8_t>(byte) < 0xCC; });
}

void to_normal_form(TrackedText& text, NormalForm form) {
  if (is_stable(text.text, form)) return;
  auto steps = decompose(text.text, form == NormalForm::nfkc || form == NormalForm::nfkd);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose(steps);
  put_steps(steps, text);
}

}  // namespace tessera::text
