#include "tessera/chat/string_operations.h"

namespace tessera::chat {

Text strip_text(const Text& text, Ends ends, const Value& characters) {
  const bool blanks = characters.is_undefined() || characters.is_none();
  const std::string_view wanted = blanks ? std::string_view() : text_of(characters).view();
  const auto kept = strip(text.view(), ends, blanks ? nullptr : &wanted);
  return text.slice(kept.begin, kept.end);
}

std::vector<Text> split_at(const Text& text, std::string_view separator, size_t most) {
  if (separator.empty()) throw Failure("split: expected a separator that is not empty");
  std::vector<Text> parts;
  size_t begin = 0;
  while (parts.size() < most) {
    const size_t end = text.view().find(separator, begin);
    if (end == std::string_view::npos) break;
    parts.push_back(text.slice(begin, end));
    begin = end + separator.size();
  }
  parts.push_back(text.slice(begin, text.size()));
  return parts;
}

std::vector<Text> split_at_blanks(const Text& text, size_t most) {
  std::vector<Text> parts;
  const auto view = text.view();
  const auto skip = [&](size_t at, bool blanks) {
    while (at < view.size() && is_space(character_at(view, at).code) == blanks)
      at += character_at(view, at).bytes;
    return at;
  };
  for (size_t begin = skip(0, true); begin < view.size();) {
    if (parts.size() == most) {
      parts.push_back(text.slice(begin, strip(view, Ends::right).end));
      break;
    }
    const size_t end = skip(begin, false);
    parts.push_back(text.slice(begin, end));
    begin = skip(end, true);
  }
  return parts;
}

std::vector<Text> lines_of(const Text& text) {
  const auto ends_line = [](char32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
  };
  std::vector<Text> lines;
  const auto view = text.view();
  size_t begin = 0;
  for (size_t at = 0; at < view.size();) {
    const auto [code, bytes] = character_at(view, at);
    const size_t behind =
        at + bytes + (code == '\r' && at + 1 < view.size() && view[at + 1] == '\n' ? 1 : 0);
    if (ends_line(code)) {
      lines.push_back(text.slice(begin, at));
      begin = behind;
    }
    at = behind;
  }
  if (begin < view.size()) lines.push_back(text.slice(begin, view.size()));
  return lines;
}

Text replaced(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
              size_t most) {
  Text out;
  size_t begin = 0;
  const auto view = text.view();
  for (size_t count = 0; count < most; ++count) {
    // An empty `old` stands in front of every character and at the end.
    size_t at = begin;
    if (!old.empty()) {
      at = view.find(old.view(), begin);
    } else if (count > 0) {
      at = begin < view.size() ? begin + character_at(view, begin).bytes : std::string_view::npos;
    }
    if (at == std::string_view::npos) break;
    interpreter.spend(replacement.size() + 1);
    out.append(text, begin, at);
    out.append(replacement);
    begin = at + old.size();
  }
  out.append(text, begin, text.size());
  return out;
}

Text joined(Interpreter& interpreter, const std::vector<Value>& items, const Text& separator) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    interpreter.spend(separator.size() + measure_of(items[i]).nodes);
    if (i > 0) out.append(separator);
    out.append(written(items[i]));
  }
  return out;
}

Text in_case(const Text& text, Case wanted) {
  Text out;
  bool within_word = false;
  const auto view = text.view();
  for (size_t at = 0; at < view.size();) {
    const auto [code, bytes] = character_at(view, at);
    std::string changed;
    const bool upper = wanted == Case::upper || (wanted != Case::lower && !within_word);
    upper ? append_upper(changed, code) : append_lower(changed, code);
    within_word = wanted == Case::capital || is_cased(code);
    out.append(changed, text.source_at(at));
    at += bytes;
  }
  return out;
}

}  // namespace tessera::chat
