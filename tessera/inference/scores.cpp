#include "tessera/inference/scores.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "tessera/data/batch.h"
#include "tessera/train/preference.h"

namespace tessera::inference {
namespace {

constexpr int64_t kRowTokens = 2048;

int64_t inputs_of(const Passage& passage) { return std::ssize(passage.tokens) - 1; }

/// Where angles follow the length of the longest text in a row, each has a row of its own.
bool can_share_rows(const models::ModelShape& shape) {
  return !shape.rope_scaling || (shape.rope_scaling->type != models::RopeScalingType::dynamic &&
                                 shape.rope_scaling->type != models::RopeScalingType::longrope);
}

/// Passages one after the other in one row.
data::Batch row_of(std::span<const Passage> passages) {
  data::Batch batch;
  std::vector<int64_t> inputs, targets, bounds;
  for (const auto& [tokens, scored] : passages) {
    const auto begin = std::ssize(inputs);
    inputs.insert(inputs.end(), tokens.begin(), tokens.end() - 1);
    for (size_t i = 1; i < tokens.size(); ++i) {
      targets.push_back(scored[i] ? tokens[i] : data::kIgnoredTarget);
    }
    batch.contents.push_back({.begin = begin,
                              .end = std::ssize(inputs),
                              .num_tokens = std::count(scored.begin() + 1, scored.end(), true)});
    bounds.insert(bounds.end(), {begin, std::ssize(inputs)});
  }
  batch.inputs = at::tensor(inputs, at::kLong).unsqueeze(0);
  batch.targets = at::tensor(targets, at::kLong).unsqueeze(0);
  batch.documents = at::tensor(bounds, at::kLong).view({-1, 2});
  return batch;
}

void score_row(models::LanguageModel& model, std::span<const Passage> passages, Score* scores) {
  const auto batch = row_of(passages);
  const auto device = (*model.parameters().begin()).device();
  const kernels::TokenLoss take([&](const at::Tensor& losses) {
    const auto found = train::log_probabilities(batch, losses);
    for (size_t i = 0; i < found.size(); ++i) scores[i] = {found[i], batch.contents[i].num_tokens};
    return kernels::Objective();
  });
  model.loss(batch.inputs.to(device), batch.targets.to(device), take, batch.documents);
}

}  // namespace

std::vector<Score> scores_of(models::LanguageModel& model, std::span<const Passage> passages,
                             const std::function<void(int64_t done, int64_t total)>& on_tokens) {
  const torch::NoGradGuard no_grad;
  const int64_t most = can_share_rows(model.shape()) ? kRowTokens : 0;
  std::vector<Score> scores(passages.size());
  int64_t done = 0, total = 0;
  for (const auto& passage : passages) total += inputs_of(passage);
  for (size_t begin = 0, end = 0; begin < passages.size(); begin = end) {
    int64_t tokens = inputs_of(passages[begin]);
    for (end = begin + 1; end < passages.size(); ++end) {
      tokens += inputs_of(passages[end]);
      if (tokens > most) break;
    }
    const auto row = passages.subspan(begin, end - begin);
    score_row(model, row, scores.data() + begin);
    for (const auto& passage : row) done += inputs_of(passage);
    if (on_tokens) on_tokens(done, total);
  }
  return scores;
}

std::vector<Passage> windows(std::span<const int64_t> tokens, const std::vector<bool>& scored,
                             int64_t seq_len, int64_t stride) {
  std::vector<Passage> passages;
  const int64_t count = std::ssize(tokens);
  int64_t done = 1;  // tokens before it need no score any more
  for (int64_t begin = 0; done < count; begin += stride) {
    const int64_t end = std::min(begin + seq_len + 1, count);
    Passage passage;
    for (int64_t i = begin; i < end; ++i) {
      passage.tokens.push_back(tokens[static_cast<size_t>(i)]);
      passage.scored.push_back(i >= done && scored[static_cast<size_t>(i)]);
    }
    if (std::ranges::count(passage.scored, true) > 0) passages.push_back(std::move(passage));
    done = end;
  }
  return passages;
}

}  // namespace tessera::inference
