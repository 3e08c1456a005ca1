#include "tessera/train/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/train/forward_backward.h"

namespace tessera::train {

std::string generate(Run& run, const std::string& prompt, const GenerateOptions& options) {
  const auto& shape = run.model->shape();
  // Sequence parallelism divides positions evenly.
  const int64_t multiple = run.tensor_axis.size();
  const int64_t longest = shape.max_seq_len / multiple * multiple;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options.seed));
  std::vector<int64_t> tokens;
  for (const unsigned char byte : prompt)
    tokens.push_back(std::min<int64_t>(byte, shape.vocab_size - 1));
  if (tokens.empty()) tokens.push_back('\n');
  std::string text = prompt;
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const int64_t length = std::min(static_cast<int64_t>(tokens.size()), longest);
    // What follows a position does not change it.
    std::vector<int64_t> given(tokens.end() - length, tokens.end());
    given.resize((given.size() + multiple - 1) / multiple * multiple);
    const auto values = logits_at(run, torch::tensor(given).unsqueeze(0), length - 1).squeeze(0);
    if (!values.isfinite().all().item<bool>()) return text + "<the model's output is no number>";
    const auto token =
        at::multinomial(at::softmax(values / options.temperature, 0), 1, false, generator)
            .item<int64_t>();
    tokens.push_back(token);
    options.on_token(i + 1);
    text += token < 256 ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
  }
  return text;
}

}  // namespace tessera::train
