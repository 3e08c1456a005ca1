#include "tessera/inference/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/gguf/file.h"
#include "tessera/inference/console.h"
#include "tessera/inference/model.h"
#include "tessera/models/hf_config.h"
#include "tessera/text/tokenizer.h"

namespace tessera::inference {
namespace {

using Prompt = std::vector<int64_t>;

constexpr std::array kTexts{"The capital of France is Paris, and the capital of Japan is",
                            "def add(a, b):\n    return a + b\n\nprint(add(1, 2))",
                            "Once upon a time, in a small village by the sea, there lived"};

/// Without a tokenizer, or with that of another model: tokens of everywhere in the vocabulary.
Prompt fixed_prompt(size_t which, int64_t vocab_size) {
  constexpr int64_t kLength = 16, kStride = 7919;
  Prompt prompt;
  for (int64_t i = 0; i < kLength; ++i)
    prompt.push_back((static_cast<int64_t>(which) * kLength + i + 1) * kStride % vocab_size);
  return prompt;
}

std::vector<Prompt> prompts_of(const StoredModel& stored, const std::filesystem::path& tokenizer) {
  const auto& shape = stored.model->shape();
  const bool has_texts = !tokenizer.empty() && text::has_tokenizer(tokenizer);
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < kTexts.size(); ++i) {
    Prompt prompt;
    if (has_texts) {
      const auto ids = text::load_tokenizer(tokenizer).encode(kTexts.at(i)).ids;
      prompt.assign(ids.begin(), ids.end());
    }
    const bool fits = !prompt.empty() && std::ranges::max(prompt) < shape.vocab_size;
    if (!fits) prompt = fixed_prompt(i, shape.vocab_size);
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(shape.max_seq_len)));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

/// [T, V] of each prompt.
std::vector<torch::Tensor> logits_of(models::LanguageModel& model,
                                     const std::vector<Prompt>& prompts) {
  const torch::NoGradGuard no_grad;
  const auto device = (*model.parameters().begin()).device();
  std::vector<torch::Tensor> logits;
  for (const auto& prompt : prompts) {
    const auto ids = torch::tensor(prompt, torch::kInt64).unsqueeze(0).to(device);
    logits.push_back(model.logits(ids).squeeze(0).to(torch::kCPU, torch::kFloat64));
  }
  return logits;
}

}  // namespace

void LogitDifference::add(const torch::Tensor& expected, const torch::Tensor& logits) {
  num_tokens += expected.size(0);
  no_numbers += (~logits.isfinite().all(-1)).sum().item<int64_t>();
  largest = std::max(largest, (expected - logits).abs().max().item<double>());
  magnitude = std::max(magnitude, expected.abs().max().item<double>());
  const auto known = expected.log_softmax(-1), other = logits.log_softmax(-1);
  divergence += (known.exp() * (known - other)).sum().item<double>();
  same += (expected.argmax(-1) == logits.argmax(-1)).sum().item<int64_t>();
}

std::string comparison_line(const LogitDifference& difference, int64_t num_prompts) {
  const auto tokens = static_cast<double>(difference.num_tokens);
  return fmt::format(
      "compared with the source on {} prompts, {} tokens: logits differ by {:.2g} at most (the "
      "largest is {:.3g}), KL divergence {:.2g}, the likeliest token is the same at {:.1f} %",
      num_prompts, difference.num_tokens, difference.largest, difference.magnitude,
      std::max(0.0, difference.divergence / tokens),
      100 * static_cast<double>(difference.same) / tokens);
}

void compare(const Request& request, const mesh::DeviceMesh& mesh) {
  std::vector<Prompt> prompts;
  std::vector<torch::Tensor> expected;
  checkpoint::TrainingOptions other{.source = request.other};
  {
    const auto source = load_model({.source = request.model}, request.dtype, mesh);
    prompts =
        prompts_of(source, request.tokenizer.empty() ? source.assets
                                                     : std::filesystem::path(request.tokenizer));
    expected = logits_of(*source.model, prompts);
    for (const auto& logits : expected) {
      if (logits.isfinite().all().item<bool>()) continue;
      user_error("{}: its logits are NaN or infinity: nothing to compare with; {} stays",
                 request.model, request.other);
    }
    if (checkpoint::is_gguf(request.other))
      other.model = models::to_hf_config(source.model->shape());
  }  // one of them in memory
  const auto exported = load_model(other, request.dtype, mesh);
  const auto found = logits_of(*exported.model, prompts);
  LogitDifference difference;
  for (size_t i = 0; i < prompts.size(); ++i) difference.add(expected[i], found[i]);
  if (difference.no_numbers > 0) {
    user_error(
        "{}: its logits are NaN or infinity at {} of {} tokens, and its source's are not; "
        "it stays, and is of no use",
        request.other, difference.no_numbers, difference.num_tokens);
  }
  write_out(mesh, comparison_line(difference, std::ssize(prompts)) + "\n");
}

}  // namespace tessera::inference
