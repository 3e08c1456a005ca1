// Do two sentences speak of the same thing? BERT fine-tuned on sentence pairs, after Accelerate's
// nlp_example. The pairs are made up, so that nothing is downloaded.
//
//     nlp_example                                   # one rank, a small BERT from nothing
//     nlp_example FOLDER                            # from Hugging Face's files
//     tessera launch --config_file examples/accelerate/configs/fsdp_bert.yaml nlp_example
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/base.h>
#include <torch/data/transforms/stack.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>

#include <filesystem>
#include <random>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/comm/run_program.h"
#include "tessera/models/bert/modules.h"
#include "tessera/train/accelerator.h"

namespace {

struct ClassifierImpl : tessera::models::Bert {
  using Bert::Bert;
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& token_types,
                        const torch::Tensor& mask) {
    return logits(ids, token_types, mask);
  }
};
using Classifier = tessera::nn::Hooked<ClassifierImpl>;

constexpr int64_t kPad = 0, kCls = 1, kSep = 2, kFirstWord = 3, kTopics = 4, kWords = 12;
constexpr int64_t kLength = 16;

/// A pair [3, T]: ids, token types, mask; target 1 if both sentences have the same topic.
class Pairs : public torch::data::datasets::Dataset<Pairs> {
 public:
  Pairs(size_t size, uint64_t seed) : size_(size), seed_(seed) {}

  torch::data::Example<> get(size_t index) override {
    std::mt19937_64 random(seed_ * 1'000'003 + index);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
    const int64_t same = below(2), topic = below(kTopics);
    const auto other = same == 1 ? topic : (topic + 1 + below(kTopics - 1)) % kTopics;
    auto rows = torch::zeros({3, kLength}, torch::kInt64);
    int64_t at = 0;
    const auto put = [&](int64_t id, int64_t type) {
      rows[0][at] = id, rows[1][at] = type, rows[2][at] = 1, ++at;
    };
    put(kCls, 0);
    for (const int64_t type : {0, 1}) {
      const auto length = 3 + below(4);
      for (int64_t i = 0; i < length; ++i) {
        put(kFirstWord + (type == 0 ? topic : other) * kWords + below(kWords), type);
      }
      put(kSep, type);
    }
    return {rows, torch::scalar_tensor(same, torch::kInt64)};
  }
  torch::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
  uint64_t seed_;
};

/// Rows [B, 3, T], cut to the longest pair of the batch.
torch::data::Example<> collate(std::vector<torch::data::Example<>> pairs) {
  auto batch = torch::data::transforms::Stack<>().apply_batch(std::move(pairs));
  const auto longest = batch.data.select(1, 2).sum(1).max().item<int64_t>();
  batch.data = batch.data.slice(2, 0, longest).contiguous();
  return batch;
}

Classifier make_model(const char* folder) {
  if (folder != nullptr) {
    const std::filesystem::path path(folder);
    Classifier model(tessera::models::read_bert_shape(path / "config.json"));
    tessera::checkpoint::load_pretrained(*model, path);
    return model;
  }
  Classifier model(
      tessera::models::BertShape{.head = tessera::models::BertHead::sequence_classification,
                                 .vocab_size = kFirstWord + kTopics * kWords,
                                 .dim = 64,
                                 .num_layers = 2,
                                 .num_heads = 4,
                                 .ffn_dim = 128,
                                 .max_seq_len = kLength});
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    auto value = item.value();
    if (value.dim() > 1) {
      value.normal_(0, 0.08);
    } else {
      value.fill_(item.key().ends_with("LayerNorm.weight") ? 1 : 0);
    }
  }
  return model;
}

}  // namespace

int program(int argc, char** argv) {
  constexpr int kEpochs = 6;
  tessera::Accelerator accelerator({.split_batches = true});
  tessera::set_seed(42);
  auto net = make_model(argc > 1 ? argv[1] : nullptr);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-3));
  torch::optim::StepLR decay(adamw, /*step_size=*/1, /*gamma=*/0.7);
  const auto stack = torch::data::transforms::BatchLambda<std::vector<torch::data::Example<>>,
                                                          torch::data::Example<>>(collate);
  auto train = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Pairs(1920, 1).map(stack), /*batch_size=*/32);
  auto held_out = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Pairs(250, 2).map(stack), /*batch_size=*/32);
  auto [model, optimizer, train_loader, eval_loader, scheduler] =
      accelerator.prepare(net, adamw, train, held_out, decay);

  double accuracy = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    for (auto& batch : train_loader) {
      const auto logits =
          model(batch.data.select(1, 0), batch.data.select(1, 1), batch.data.select(1, 2));
      accelerator.backward(at::cross_entropy_loss(logits, batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    scheduler.step();
    int64_t correct = 0, count = 0;
    const torch::NoGradGuard no_grad;
    for (auto& batch : eval_loader) {
      const auto logits =
          model(batch.data.select(1, 0), batch.data.select(1, 1), batch.data.select(1, 2));
      const auto right = accelerator.gather_for_metrics(logits.argmax(-1).eq(batch.target));
      correct += right.sum().item<int64_t>();
      count += right.numel();
    }
    accuracy = static_cast<double>(correct) / static_cast<double>(count);
    accelerator.print("epoch {}: accuracy {:.3f} of {} held-out pairs", epoch, accuracy, count);
  }
  return accuracy > 0.9 ? 0 : 1;  // one half by guessing
}

int main(int argc, char** argv) {
  return tessera::run_program([&] { return program(argc, argv); });
}
