// Training on pairs of answers: as the formulas say, written out in plain LibTorch on one rank, and
// in every layout as on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/held_matrices.h"
#include "tessera/documents/documents.h"
#include "tessera/models/language_model.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/open_data.h"
#include "tessera/train/reference.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

using tessera::testing::message_of;
using ::testing::HasSubstr;
using train::PreferenceLoss;

constexpr int kSteps = 3;
constexpr int64_t kPairs = 12, kVocabulary = 5000;

/// Pairs of uneven length; answers differ in a word.
std::string pairs() {
  std::string rows;
  for (int i = 0; i < kPairs; ++i) {
    std::string question = "Say", good = "Well:", bad = "No:";
    for (int word = 0; word < i * 7 % 11; ++word) question += " please " + std::to_string(word);
    for (int word = 0; word < i * 5 % 7; ++word) good += " yes " + std::to_string(i + word);
    for (int word = 0; word < i * 3 % 5; ++word) bad += " never " + std::to_string(i + word);
    rows += R"({"prompt": ")" + question + R"( ", "chosen": ")" + good + R"(", "rejected": ")" +
            bad + "\"}\n";
  }
  return rows;
}

config::RunConfig job_in(const std::filesystem::path& folder) {
  config::RunConfig job;
  job.model.preset = "tiny";
  job.model.vocab_size = kVocabulary;
  job.model.num_layers = 2;
  job.model.dim = 64, job.model.ffn_dim = 96, job.model.num_heads = 4, job.model.num_kv_heads = 2;
  job.data.train = {folder / "pairs.jsonl"};
  job.data.tokenizer = "tests/fixtures/tokenizers/qwen2_style";
  job.data.validation_fraction = 0;
  job.data.shuffle = false;
  job.data.packing = false;
  job.data.seq_len = 192;
  job.optimizer.learning_rate = 1e-3;
  job.optimizer.eps = 1e-5;  // noise of gradients that are zero in theory stays noise
  job.schedule.type = optim::LearningRateSchedule::constant;
  job.preference.loss = PreferenceLoss::sigmoid;
  job.train.steps = kSteps;
  job.train.global_batch = kPairs;
  job.train.run_dir = folder / "run";
  job.checkpoint.at_end = false;
  return job;
}

const auto kQuiet = [](const std::string&) {};

/// Losses, gradient norms and figures of every step.
std::vector<double> trained(const config::RunConfig& job, const mesh::DeviceMesh& mesh) {
  auto run = train::assemble(job, mesh);
  train::prepare_reference(run, kQuiet);
  std::vector<double> values;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto result = train::train_step(run, step);
    values.insert(values.end(), {result.loss, result.grad_norm});
    for (const auto& figure : result.figures) values.push_back(figure.value);
  }
  return values;
}

class PreferenceParityTest : public ::testing::Test {
 protected:
  void SetUp() override { write_file(folder_.path() / "pairs.jsonl", pairs()); }

  config::RunConfig job() const { return job_in(folder_.path()); }

  /// What `layout` trains is what one rank without any of it does.
  void expect_as_on_one_rank(config::RunConfig layout, const mesh::MeshShape& shape,
                             double tolerance = 2e-5) {
    auto plain = layout;
    plain.parallel = job().parallel;
    plain.memory = {};
    plain.train.micro_batch = 0;
    plain.train.run_dir = folder_.path() / "plain";
    const auto alone = trained(plain, mesh::DeviceMesh());
    layout.train.run_dir =
        folder_.path() / fmt::format("run_{}_{}_{}_{}_{}", shape.dp_replicate, shape.dp_shard,
                                     shape.tp, shape.pp, layout.train.micro_batch);
    layout = over(layout, shape, layout.parallel.placement);
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      const auto found = trained(layout, mesh);
      ASSERT_EQ(found.size(), alone.size());
      for (size_t i = 0; i < found.size(); ++i) {
        // Accuracies are of pairs that start equal: a rounding decides.
        if (i % 8 == 4 && i < 8) continue;
        EXPECT_NEAR(found[i], alone[i], tolerance * std::max(1.0, std::abs(alone[i])))
            << "value " << i % 8 << " of step " << i / 8;
      }
    });
  }

  const SharedFolder folder_;
};

/// The step's loss, its gradients and its figures with whole logits and autograd, one document at a
/// time; SGD follows.
class Plain {
 public:
  Plain(const config::RunConfig& job, const documents::Documents& documents)
      : job_(job),
        documents_(documents),
        model_(models::make_language_model(config::resolve_model_shape(job.model))) {
    models::initialise(*model_, job.model.seed, job.model.init_std);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < documents.size(); ++i) reference_.push_back(log_probability(i));
  }

  struct Step {
    double loss = 0, norm = 0, chosen = 0, rejected = 0, accuracy = 0, margin = 0;
  };

  Step step() {
    for (auto& parameter : model_->parameters()) parameter.mutable_grad().reset();
    torch::Tensor loss = torch::zeros({}, torch::kFloat64), nll = loss, tokens = loss;
    Step result;
    const auto& [kind, beta, smoothing] = job_.preference;
    const auto pairs = static_cast<double>(documents_.num_rows());
    for (size_t pair = 0; pair < documents_.num_rows(); ++pair) {
      const auto c = log_probability(2 * pair), r = log_probability(2 * pair + 1);
      const auto n_c = num_tokens(2 * pair), n_r = num_tokens(2 * pair + 1);
      torch::Tensor reward_c = beta * (c - reference_[2 * pair]);
      torch::Tensor reward_r = beta * (r - reference_[2 * pair + 1]);
      if (kind == PreferenceLoss::sigmoid) {
        const auto z = reward_c - reward_r;
        loss = loss - torch::log_sigmoid(z) * (1 - smoothing) - torch::log_sigmoid(-z) * smoothing;
      } else if (kind == PreferenceLoss::ipo) {
        loss = loss + (reward_c / beta / n_c - reward_r / beta / n_r - 1 / (2 * beta)).square();
      } else {
        const auto a = c / n_c, b = r / n_r;
        const auto odds = (a - b) - (torch::log1p(-a.exp()) - torch::log1p(-b.exp()));
        loss = loss - beta * torch::log_sigmoid(odds);
        nll = nll - c, tokens = tokens + n_c;
        reward_c = beta * a, reward_r = beta * b;
      }
      result.chosen += reward_c.item<double>() / pairs;
      result.rejected += reward_r.item<double>() / pairs;
      result.accuracy += (reward_c > reward_r).item<bool>() ? 1 / pairs : 0;
    }
    loss = loss / pairs;
    if (kind == PreferenceLoss::orpo) loss = loss + nll / tokens;
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model_->parameters()) {
      result.norm += parameter.grad().to(torch::kFloat64).square().sum().item<double>();
      parameter.sub_(parameter.grad(), job_.optimizer.learning_rate);
    }
    result.norm = std::sqrt(result.norm);
    result.loss = loss.item<double>();
    result.margin = result.chosen - result.rejected;
    return result;
  }

 private:
  double num_tokens(size_t document) const {
    const auto tokens = documents_[document].subspan(1);
    return static_cast<double>(std::ranges::count_if(tokens, documents::is_learned));
  }

  torch::Tensor log_probability(size_t document) {
    std::vector<int64_t> ids, learned;
    for (const auto token : documents_[document]) {
      ids.push_back(documents::id_of(token));
      learned.push_back(documents::is_learned(token) ? 1 : 0);
    }
    const auto whole = torch::tensor(ids), mask = torch::tensor(learned);
    const int64_t inputs = whole.size(0) - 1;
    const auto logits = model_->logits(whole.narrow(0, 0, inputs).unsqueeze(0))[0];
    const auto each = logits.to(torch::kFloat64)
                          .log_softmax(-1)
                          .gather(1, whole.narrow(0, 1, inputs).unsqueeze(1))
                          .squeeze(1);
    return (each * mask.narrow(0, 1, inputs)).sum();
  }

  config::RunConfig job_;
  const documents::Documents& documents_;
  std::shared_ptr<models::LanguageModel> model_;
  std::vector<torch::Tensor> reference_;
};

struct Formula {
  PreferenceLoss loss;
  double beta, label_smoothing;
};

class FormulaTest : public PreferenceParityTest, public ::testing::WithParamInterface<Formula> {};

TEST_P(FormulaTest, IsWrittenOutInPlainLibTorch) {
  auto job = this->job();
  const auto& [loss, beta, smoothing] = GetParam();
  job.preference = {.loss = loss, .beta = beta, .label_smoothing = smoothing};
  job.optimizer = {.type = optim::OptimizerType::sgd,
                   .learning_rate = 0.05,
                   .weight_decay = 0,
                   .max_grad_norm = 0};
  const auto documents =
      documents::load_documents(documents::DocumentEncoder({.tokenizer = job.data.tokenizer}),
                                {.paths = job.data.train, .shape = data::RowShape::preference});
  for (const bool packing : {false, true}) {
    if (packing) {  // the same steps once more
      job.data.packing = true, job.data.seq_len = 384;
      job.train.global_batch = train::open_data(job, kVocabulary, 1).train->size();
      EXPECT_LT(job.train.global_batch, kPairs / 2);
    }
    Plain plain(job, documents);
    auto run = train::assemble(job, mesh::DeviceMesh());
    train::prepare_reference(run, kQuiet);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto expected = plain.step();
      const auto found = train::train_step(run, step);
      EXPECT_NEAR(found.loss / expected.loss, 1, 1e-5) << "step " << step;
      EXPECT_NEAR(found.grad_norm / expected.norm, 1, 1e-4) << "step " << step;
      EXPECT_NEAR(found.figures[0].value, expected.chosen, 2e-5);
      EXPECT_NEAR(found.figures[1].value, expected.rejected, 2e-5);
      const double tolerance = step == 0 ? 1 : 1e-9;  // which of equal ones is larger
      EXPECT_NEAR(found.figures[2].value, expected.accuracy, tolerance);
      EXPECT_NEAR(found.figures[3].value, expected.margin, 2e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, FormulaTest,
                         ::testing::Values(Formula{PreferenceLoss::sigmoid, 0.1, 0},
                                           Formula{PreferenceLoss::sigmoid, 0.5, 0.2},
                                           Formula{PreferenceLoss::ipo, 0.5, 0},
                                           Formula{PreferenceLoss::orpo, 0.25, 0}));

TEST_F(PreferenceParityTest, StartsAtLogTwo) {
  auto run = train::assemble(job(), mesh::DeviceMesh());
  train::prepare_reference(run, kQuiet);
  const auto first = train::train_step(run, 0);
  EXPECT_NEAR(first.loss, std::log(2), 1e-6);
  EXPECT_EQ(first.figures[3].value, 0) << "the same rows: margins are equal to the bit";
  EXPECT_EQ(first.figures[2].value, 0.5);
}

TEST_F(PreferenceParityTest, UnevenRanksAndMicroBatches) {
  expect_as_on_one_rank(job(), {.dp_replicate = 2});
  auto accumulated = job();
  accumulated.train.micro_batch = 2;
  expect_as_on_one_rank(accumulated, {.dp_replicate = 1});
  accumulated.train.micro_batch = 1;
  expect_as_on_one_rank(accumulated, {.dp_replicate = 3});
}

TEST_F(PreferenceParityTest, OrpoOnUnevenRanks) {
  auto orpo = job();
  orpo.preference.loss = PreferenceLoss::orpo;
  auto plain = orpo;
  const auto alone = trained(plain, mesh::DeviceMesh());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run" / train::kReferenceFile));
  orpo.train.micro_batch = 2;
  on_mesh({.shape = {.dp_replicate = 3}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = orpo;
    job.parallel.num_ranks = 3;
    const auto found = trained(job, mesh);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], alone[i], 2e-5 * std::max(1.0, std::abs(alone[i]))) << i;
    }
  });
}

TEST_F(PreferenceParityTest, ShardedAndCheckpointed) {
  auto sharded = job();
  sharded.parallel.placement = parallel::Placement::full_shard;
  sharded.memory.checkpointing = memory::CheckpointMode::full;
  sharded.train.micro_batch = 2;
  expect_as_on_one_rank(sharded, {.dp_shard = 3});
}

TEST_F(PreferenceParityTest, TensorParallel) { expect_as_on_one_rank(job(), {.tp = 2}); }

TEST_F(PreferenceParityTest, Pipeline) {
  auto pipelined = job();
  pipelined.train.micro_batch = 3;
  expect_as_on_one_rank(pipelined, {.pp = 2});
}

TEST_F(PreferenceParityTest, HalfPrecisionStartsEqual) {
  auto half = job();
  half.precision.compute = FloatType::bf16;
  for (const bool autocast : {false, true}) {
    half.precision.autocast = autocast;
    half.train.run_dir = folder_.path() / (autocast ? "autocast" : "bf16");
    auto run = train::assemble(half, mesh::DeviceMesh());
    train::prepare_reference(run, kQuiet);
    const auto first = train::train_step(run, 0);
    EXPECT_NEAR(first.loss, std::log(2), 1e-6) << "the reference computes as the policy does";
    EXPECT_LT(train::train_step(run, 1).loss, first.loss);
  }
}

TEST_F(PreferenceParityTest, IsLearnedAndValidated) {
  auto job = this->job();
  job.data.validation_fraction = 0.25;
  job.train.global_batch = 9;
  job.optimizer.learning_rate = 3e-3;
  auto run = train::assemble(job, mesh::DeviceMesh());
  train::prepare_reference(run, kQuiet);
  const auto before = train::validate(run);
  EXPECT_NEAR(before->loss, std::log(2), 1e-6);
  train::StepResult last;
  for (int64_t step = 0; step < 15; ++step) last = train::train_step(run, step);
  EXPECT_EQ(last.figures[2].value, 1) << "every chosen answer is preferred";
  EXPECT_LT(last.loss, 0.3);
  const auto after = train::validate(run);
  EXPECT_EQ(after->figures[2].value, 1) << "of pairs that were not learned, too";
  EXPECT_LT(after->loss, before->loss);
}

TEST_F(PreferenceParityTest, ResumesToTheBitWithTheStoredReference) {
  on_mesh({.shape = {.dp_shard = 2}}, [&](const mesh::DeviceMesh& mesh) {
    auto job = this->job();
    job.parallel = {.num_ranks = 2, .placement = parallel::Placement::full_shard};
    job.checkpoint.every = 2;
    job.train.steps = 4;
    job.train.global_batch = 4;
    job.data.shuffle = true;
    const auto train_to = [&](train::Run& run, train::Counts counts, int64_t last,
                              train::Checkpointing* saving) {
      std::vector<double> losses;
      while (counts.step < last) {
        const auto result = train::train_step(run, counts.step);
        losses.insert(losses.end(), {result.loss, result.figures[3].value});
        ++counts.step, counts.samples_seen += job.train.global_batch;
        if (saving != nullptr) saving->after_step(counts, std::nullopt, result.requests);
      }
      if (saving != nullptr) saving->finish();
      return losses;
    };
    auto whole = train::assemble(job, mesh);
    train::prepare_reference(whole, kQuiet);
    train::Checkpointing saving(whole, {});
    train_to(whole, {}, 2, &saving);
    const auto rest = train_to(whole, {.step = 2, .samples_seen = 8}, 4, nullptr);

    job.checkpoint.resume = "auto";
    auto resumed = train::assemble(job, mesh);
    std::string said;
    train::prepare_reference(resumed, [&](const std::string& line) { said += line; });
    EXPECT_THAT(said, HasSubstr("read from"));
    const auto from = train::resume(resumed);
    EXPECT_EQ(from.counts.step, 2);
    EXPECT_EQ(train_to(resumed, from.counts, 4, nullptr), rest);

    // Another model's, or of other data, are refused on every rank.
    job.model.seed = 5;
    auto other = train::assemble(job, mesh);
    EXPECT_THAT(message_of([&] { train::prepare_reference(other, kQuiet); }),
                HasSubstr("reference_logps.json: of other data, another model"));
  });
}

TEST_F(PreferenceParityTest, RowsThatAreNoPairs) {
  auto job = this->job();
  write_file(folder_.path() / "texts.jsonl", "{\"text\": \"a\"}\n");
  job.data.train = {folder_.path() / "texts.jsonl"};
  EXPECT_THAT(
      message_of([&] { train::assemble(job, mesh::DeviceMesh()); }),
      HasSubstr("texts.jsonl:1: chosen: expected a text or a list of messages, found none"));
  job = this->job();
  job.preference = {};
  EXPECT_THAT(message_of([&] { train::assemble(job, mesh::DeviceMesh()); }),
              HasSubstr("set it to sigmoid, ipo or orpo"));
}

/// An adapter of the job's model with values of their own, as PEFT's folder.
std::filesystem::path stored_adapter(const config::RunConfig& job,
                                     const std::filesystem::path& folder, double size) {
  const models::AdapterSpec spec{
      .type = models::AdapterType::lora, .rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}};
  const auto shape = config::resolve_model_shape(job.model);
  checkpoint::HeldMatrices tensors("made");
  for (const auto& parameter : models::trained_parameters(spec, shape)) {
    std::vector<float> values(static_cast<size_t>(parameter.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(size * std::sin(0.7 * static_cast<double>(i)));
    }
    tensors.add(parameter.name, parameter.shape, std::move(values));
  }
  checkpoint::write_peft(tensors, shape, folder, {.config = {.spec = spec}, .dtype = {}});
  return folder;
}

// A stored adapter that is trained on is part of what answers are compared with, and so are those
// below a new one: both begin with no difference. A run that goes on with another one is refused.
TEST_F(PreferenceParityTest, TheReferenceHasTheAdaptersThatTheRunBeginsWith) {
  auto with_adapter = job();
  with_adapter.adapter.type = models::AdapterType::lora;
  const auto stored = stored_adapter(with_adapter, folder_.path() / "adapter", 0.3);
  auto upon = with_adapter, trained_on = with_adapter;
  trained_on.adapter.path = stored;
  upon.adapter.base = {stored};
  const auto reference_of = [](const config::RunConfig& of) {
    auto run = train::assemble(of, mesh::DeviceMesh());
    train::prepare_reference(run, kQuiet);
    EXPECT_NEAR(train::train_step(run, 0).loss, std::log(2), 1e-5);  // of a margin of zero
    return *run.reference.train;
  };
  const auto alone = reference_of(with_adapter), below = reference_of(upon);
  const auto found = reference_of(trained_on);
  ASSERT_EQ(found.size(), alone.size());
  double moved = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], below[i], 1e-4 * std::abs(found[i]));
    moved = std::max(moved, std::abs(found[i] - alone[i]));
  }
  EXPECT_GT(moved, 1e-2);
  trained_on.adapter.path = stored_adapter(with_adapter, folder_.path() / "other", 0.2);
  trained_on.checkpoint.resume = "auto";
  auto other = train::assemble(trained_on, mesh::DeviceMesh());
  EXPECT_THAT(message_of([&] { train::prepare_reference(other, kQuiet); }),
              HasSubstr("of other data, another model or other settings"));
}

}  // namespace
}  // namespace tessera::parity
