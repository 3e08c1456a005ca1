#include "tessera/train/generate.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tessera/generate/codec.h"
#include "tessera/generate/generate.h"
#include "tessera/train/forward_backward.h"

namespace tessera::train {
namespace {

/// The end of a text that has grown beyond `longest` tokens: it begins anew every half of that, so
/// that what a cache keeps serves for many tokens.
std::span<const int64_t> latest(std::span<const int64_t> tokens, int64_t longest) {
  const int64_t beyond = std::ssize(tokens) - longest, half = std::max<int64_t>(1, longest / 2);
  if (beyond <= 0) return tokens;
  return tokens.subspan(static_cast<size_t>((beyond + half - 1) / half * half));
}

/// A forward over all of the text. Sequence parallelism divides positions evenly; what follows a
/// position does not change it.
torch::Tensor recomputed_logits(Run& run, std::span<const int64_t> tokens) {
  const size_t multiple = static_cast<size_t>(run.tensor_axis.size());
  std::vector<int64_t> given(tokens.begin(), tokens.end());
  given.resize((given.size() + multiple - 1) / multiple * multiple);
  return logits_at(run, torch::tensor(given).unsqueeze(0), {.position = std::ssize(tokens) - 1})
      .squeeze(0);
}

/// Keys and values are kept where a rank has all layers, and all positions of them.
generate::NextLogits next_logits_of(Run& run) {
  const auto longest = run.model->shape().max_seq_len;
  const auto tensor_ranks = run.tensor_axis.size();
  const bool divided = tensor_ranks > 1 && run.config.parallel.sequence_parallel;
  if (divided || run.pipeline_axis.size() > 1) {
    return [&run, most = longest / tensor_ranks * tensor_ranks](auto tokens) {
      return recomputed_logits(run, latest(tokens, most));
    };
  }
  auto cached = std::make_shared<generate::CachedModel>(
      *run.model, [&run](const torch::Tensor& ids, int64_t first_position) {
        const TextPosition last{.position = ids.size(1) - 1, .first_position = first_position};
        return logits_at(run, ids, last).squeeze(0);
      });
  return [cached, longest](auto tokens) { return (*cached)(latest(tokens, longest)); };
}

}  // namespace

bool continue_tokens(Run& run, std::vector<int64_t> prompt, const GenerateOptions& options) {
  const auto compute = next_logits_of(run);
  bool is_number = true;
  const auto next_logits = [&](std::span<const int64_t> text) {
    const auto logits = compute(text);
    is_number = logits.isfinite().all().item<bool>();
    return is_number ? logits : torch::zeros_like(logits);
  };
  const auto on_token = [&](int64_t token) {
    if (is_number) options.on_token(token);
    return is_number;
  };
  generate::generate(next_logits, std::move(prompt),
                     {.max_new_tokens = options.num_tokens,
                      .sampling = {.temperature = options.temperature,
                                   .seed = static_cast<uint64_t>(options.seed)},
                      .end_tokens = options.end_tokens,
                      .on_token = on_token});
  return is_number;
}

std::string generate(Run& run, const std::string& prompt, GenerateOptions options) {
  const generate::Codec codec(run.tokenizer, run.model->shape().vocab_size);
  generate::Decoder decoder(codec);
  std::string text = prompt;
  options.end_tokens = codec.end_tokens();
  options.on_token = [&, told = std::move(options.on_token)](int64_t token) {
    told(token);
    text += decoder.push(token);
  };
  if (!continue_tokens(run, codec.encode(prompt), options))
    text += "<the model's output is no number>";
  return text + decoder.finish();
}

}  // namespace tessera::train
