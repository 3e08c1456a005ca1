#include "tessera/text/decoder.h"

#include <array>
#include <utility>

#include "tessera/text/unicode.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {
namespace {

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  if (what.empty()) return;
  std::string made;
  size_t at = 0;
  for (size_t found; (found = text.find(what, at)) != text.npos; at = found + what.size()) {
    made.append(text, at, found - at);
    made += with;
  }
  if (at == 0) return;
  made.append(text, at);
  text = std::move(made);
}

void clean_up(std::string& text) {
  constexpr std::array<std::array<std::string_view, 2>, 11> kRules{{{" .", "."},
                                                                    {" ?", "?"},
                                                                    {" !", "!"},
                                                                    {" ,", ","},
                                                                    {" ' ", "'"},
                                                                    {" n't", "n't"},
                                                                    {" 'm", "'m"},
                                                                    {" do not", " don't"},
                                                                    {" 's", "'s"},
                                                                    {" 've", "'ve"},
                                                                    {" 're", "'re"}}};
  for (const auto& [what, with] : kRules) replace_all(text, what, with);
}

void decode(const ByteLevelDecoding&, std::vector<std::string>& tokens) {
  std::string bytes, of_token;
  for (const auto& token : tokens) {
    of_token.clear();
    bool all = true;
    for (size_t at = 0; at < token.size() && all;) {
      const auto letter = character_at(token, at);
      const int byte = byte_of_letter(letter.code);
      all = byte >= 0;
      of_token += static_cast<char>(byte);
      at += letter.bytes;
    }
    bytes += all ? of_token : token;
  }
  tokens = {replace_invalid_utf8(bytes)};
}

void decode(const WordPieceDecoding& step, std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto& token = tokens[i];
    if (i > 0) {
      if (token.starts_with(step.prefix)) {
        token.erase(0, step.prefix.size());
      } else {
        token.insert(0, " ");
      }
    }
    if (step.cleanup) clean_up(token);
  }
}

void decode(const MetaspaceDecoding& step, std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool drops = i == 0 && step.prepend != Prepend::never;
    replace_all(tokens[i], step.mark, drops ? "" : " ");
  }
}

void decode(const ByteFallbackDecoding&, std::vector<std::string>& tokens) {
  std::vector<std::string> made;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      made.push_back(bytes);
    } else {
      made.resize(made.size() + bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (auto& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    made.push_back(std::move(token));
  }
  flush();
  tokens = std::move(made);
}

void decode(const FuseDecoding&, std::vector<std::string>& tokens) {
  std::string all;
  for (const auto& token : tokens) all += token;
  tokens = {std::move(all)};
}

void decode(const StripDecoding& step, std::vector<std::string>& tokens) {
  const auto bytes = step.content.size();
  for (auto& token : tokens) {
    for (size_t i = 0; i < step.start && token.starts_with(step.content); ++i)
      token.erase(0, bytes);
    for (size_t i = 0; i < step.stop && token.ends_with(step.content); ++i)
      token.resize(token.size() - bytes);
  }
}

void decode(const ReplaceText& step, std::vector<std::string>& tokens) {
  for (auto& token : tokens) {
    TrackedText text;
    text.text = std::move(token);
    replace_in(text, step);
    token = std::move(text.text);
  }
}

void decode(const BpeDecoding& step, std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i)
    replace_all(tokens[i], step.suffix, i + 1 < tokens.size() ? " " : "");
}

void decode(const CtcDecoding& step, std::vector<std::string>& tokens) {
  std::vector<std::string> made;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && tokens[i] == tokens[i - 1]) continue;
    auto token = tokens[i];
    replace_all(token, step.pad, "");
    if (step.cleanup) {
      clean_up(token);
      replace_all(token, step.word_delimiter, " ");
    }
    if (!token.empty()) made.push_back(std::move(token));
  }
  tokens = std::move(made);
}

}  // namespace

void apply(const DecoderStep& step, std::vector<std::string>& tokens) {
  std::visit([&](const auto& each) { decode(each, tokens); }, step);
}

}  // namespace tessera::text
