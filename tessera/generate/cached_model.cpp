#include "tessera/generate/cached_model.h"

#include <algorithm>

namespace tessera::generate {
namespace {

Forward forward_of(models::LanguageModel& model) {
  return [&model](const torch::Tensor& ids, int64_t first_position) {
    const torch::NoGradGuard no_grad;
    const models::RowLayout rows{
        .seq_len = ids.size(1), .first_position = first_position, .documents = {}};
    const auto hidden = model.run_layers(model.embed(ids, rows), 0, model.shape().num_layers, rows);
    return model.head(hidden.narrow(1, ids.size(1) - 1, 1), {}, 1.0).flatten();
  };
}

bool has_scaling(const models::ModelShape& shape, models::RopeScalingType type) {
  return shape.rope_scaling && shape.rope_scaling->type == type;
}

}  // namespace

CachedModel::CachedModel(models::LanguageModel& model, Forward forward)
    : shape_(model.shape()),
      forward_(forward ? std::move(forward) : forward_of(model)),
      cache_(model) {}

/// Where angles follow the length of the text, a prompt has those of its whole length, as
/// transformers computes it.
int64_t CachedModel::tokens_at_once(int64_t length) const {
  const bool by_length = has_scaling(shape_, models::RopeScalingType::dynamic) ||
                         has_scaling(shape_, models::RopeScalingType::longrope);
  return by_length ? length : chunk;
}

torch::Tensor CachedModel::operator()(std::span<const int64_t> tokens) {
  TORCH_CHECK_VALUE(!tokens.empty(), "generate: expected at least one token");
  const int64_t length = std::ssize(tokens);
  const auto both = std::ranges::mismatch(tokens, tokens_);
  // The last token's logits are asked for, so it is always computed.
  int64_t known = std::min<int64_t>(both.in1 - tokens.begin(), length - 1);
  if (has_scaling(shape_, models::RopeScalingType::longrope)) {
    // Beyond the original length every key turns by other factors.
    const int64_t original = shape_.rope_scaling->original_max_seq_len;
    if (length > original && known <= original) known = 0;
  }
  known = cache_.shorten(known);
  tokens_.assign(tokens.begin(), tokens.begin() + known);
  torch::Tensor logits;
  while (known < length) {
    const int64_t count = std::min(tokens_at_once(length), length - known);
    const auto part = tokens.subspan(static_cast<size_t>(known), static_cast<size_t>(count));
    logits =
        forward_(torch::tensor(std::vector<int64_t>(part.begin(), part.end())).unsqueeze(0), known);
    tokens_.insert(tokens_.end(), part.begin(), part.end());
    known += count;
  }
  return logits.to(torch::kFloat32).cpu().contiguous();
}

}  // namespace tessera::generate
