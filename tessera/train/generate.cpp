#include "tessera/train/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace tessera::train {

std::string generate(models::LanguageModel& model, const std::string& prompt,
                     const GenerateOptions& options) {
  const torch::NoGradGuard no_grad;
  const int64_t multiple = options.length_multiple;
  const int64_t longest = model.shape().max_seq_len / multiple * multiple;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options.seed));
  std::vector<int64_t> tokens;
  for (const unsigned char byte : prompt)
    tokens.push_back(std::min<int64_t>(byte, model.shape().vocab_size - 1));
  if (tokens.empty()) tokens.push_back('\n');
  std::string text = prompt;
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const int64_t length = std::min(static_cast<int64_t>(tokens.size()), longest);
    // What follows a position does not change it.
    std::vector<int64_t> given(tokens.end() - length, tokens.end());
    given.resize((given.size() + multiple - 1) / multiple * multiple);
    const auto ids = torch::tensor(given).unsqueeze(0).to(model.parameters().front().device());
    const auto logits =
        model.logits(ids).select(1, length - 1).squeeze(0).to(torch::kFloat32).cpu();
    const auto token =
        at::multinomial(at::softmax(logits / options.temperature, 0), 1, false, generator)
            .item<int64_t>();
    tokens.push_back(token);
    text += token < 256 ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
  }
  return text;
}

}  // namespace tessera::train
