#include "tessera/generate/generate.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera::generate {

std::vector<int64_t> generate(const NextLogits& next_logits, std::vector<int64_t> tokens,
                              const GenerateOptions& options) {
  const size_t num_given = tokens.size();
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto logits = next_logits(tokens);
    const std::span<const float> values(logits.const_data_ptr<float>(),
                                        static_cast<size_t>(logits.numel()));
    const int64_t token = sample(values, tokens, options.sampling);
    tokens.push_back(token);
    if (std::ranges::count(options.end_tokens, token) > 0 || !options.on_token(token)) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(num_given), tokens.end()};
}

StopWords::StopWords(std::vector<std::string> words) : words_(std::move(words)) {
  std::erase(words_, "");
}

std::string StopWords::push(const std::string& piece) {
  if (found_) return {};
  waiting_ += piece;
  size_t shown = waiting_.size();
  for (const auto& word : words_) {
    if (const size_t at = waiting_.find(word); at != std::string::npos) {
      found_ = true;
      shown = std::min(shown, at);
    }
  }
  if (found_) return std::exchange(waiting_, {}).substr(0, shown);
  for (const auto& word : words_) {  // the longest end of the text that begins a word
    size_t length = std::min(word.size() - 1, waiting_.size());
    while (length > 0 && !waiting_.ends_with(std::string_view(word).substr(0, length))) --length;
    shown = std::min(shown, waiting_.size() - length);
  }
  auto text = waiting_.substr(0, shown);
  waiting_.erase(0, shown);
  return text;
}

std::string StopWords::finish() { return std::exchange(waiting_, {}); }

}  // namespace tessera::generate
