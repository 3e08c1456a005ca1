// Training on conversations: several in a row against one in each, in every layout.
#include <gtest/gtest.h>

#include "tessera/train/open_data.h"
#include "tests/parity/fixture.h"
#include "tests/support/temporary_folder.h"

namespace tessera::parity {
namespace {

constexpr int kSteps = 3;

/// Conversations of uneven length.
std::string conversations() {
  std::string rows;
  for (int i = 0; i < 14; ++i) {
    std::string question = "Say", answer = "Well:";
    for (int word = 0; word < i * 7 % 11; ++word) question += " please " + std::to_string(word);
    for (int word = 0; word < i * 5 % 13; ++word) answer += " yes " + std::to_string(i + word);
    rows += R"({"messages": [{"role": "user", "content": ")" + question +
            R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
  }
  return rows;
}

class PackedParityTest : public ::testing::Test {
 protected:
  /// All rows in each step, so that both see the same documents.
  config::RunConfig job(bool packing) const {
    config::RunConfig job;
    job.model.preset = "tiny";
    job.model.vocab_size = 5000;
    job.model.num_layers = 2;
    job.model.dim = 64, job.model.ffn_dim = 96, job.model.num_heads = 4, job.model.num_kv_heads = 2;
    job.data.train = {folder_.path() / "chats.jsonl"};
    job.data.tokenizer = "tests/fixtures/tokenizers/qwen2_style";
    job.data.chat_template = folder_.path() / "chat.jinja";
    job.data.validation_fraction = 0;
    job.data.shuffle = false;
    job.data.packing = packing;
    job.data.seq_len = 160;
    job.train.steps = kSteps;
    job.checkpoint.at_end = false;
    return job;
  }

  static std::vector<double> losses(config::RunConfig job, const mesh::DeviceMesh& mesh,
                                    int64_t global_batch) {
    job.train.global_batch = global_batch;
    auto run = train::assemble(job, mesh);
    EXPECT_EQ(run.train_loader.num_batches(), 1) << "of other documents";
    std::vector<double> losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto result = train::train_step(run, step);
      losses.insert(losses.end(), {result.loss, result.grad_norm});
    }
    return losses;
  }

  int64_t num_rows(const config::RunConfig& job) const {
    return train::open_data(job, 5000, 1).train->size();
  }

  void expect_as_alone(config::RunConfig packed, const mesh::MeshShape& shape) {
    const auto rows = num_rows(packed);
    EXPECT_LT(rows, 14);
    packed = over(packed, shape, packed.parallel.placement);
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      const auto found = losses(packed, mesh, rows);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_NEAR(found[i], alone_.at(i), 2e-6 * alone_[i])
            << (i % 2 ? "norm" : "loss") << " of step " << i / 2;
      }
    });
  }

  void SetUp() override {
    folder_.write("chats.jsonl", conversations());
    folder_.write("chat.jinja",
                  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                  "message['content'] + '<|im_end|>\\n' }}{% endfor %}");
    alone_ = losses(job(false), mesh::DeviceMesh(), num_rows(job(false)));
  }

  const tessera::testing::TemporaryFolder folder_;
  std::vector<double> alone_;  ///< losses and gradient norms of one document a row on one rank
};

TEST_F(PackedParityTest, OneRank) { expect_as_alone(job(true), {.dp_replicate = 1}); }

TEST_F(PackedParityTest, UnevenRows) {
  expect_as_alone(job(true), {.dp_replicate = 2});
  expect_as_alone(job(true), {.dp_replicate = 3});
}

TEST_F(PackedParityTest, ShardedAndCheckpointed) {
  auto packed = job(true);
  packed.parallel.placement = parallel::Placement::full_shard;
  packed.memory.checkpointing = memory::CheckpointMode::full;
  packed.train.micro_batch = 1;
  expect_as_alone(packed, {.dp_shard = 2});
}

TEST_F(PackedParityTest, TensorParallel) { expect_as_alone(job(true), {.tp = 2}); }

TEST_F(PackedParityTest, Pipeline) {
  auto packed = job(true);
  packed.train.micro_batch = 1;
  expect_as_alone(packed, {.pp = 2});
}

/// data.document_mask: the rows of a stream, beside the documents in them one by one.
TEST_F(PackedParityTest, DocumentsOfAStreamSeeThemselvesAlone) {
  for (int i = 0; i < 9; ++i) {
    std::string text;
    for (int word = 0; word < 5 + i * 7 % 11; ++word) text += " word" + std::to_string(i * word);
    folder_.write("texts/" + std::to_string(i) + ".txt", text);
  }
  auto stream = job(true);
  stream.data = {.train = {folder_.path() / "texts"},
                 .validation_fraction = 0,
                 .format = data::DataFormat::text,
                 .seq_len = 100,
                 .document_mask = true};
  stream.train.global_batch = 3;
  const auto run = train::assemble(stream, mesh::DeviceMesh());
  const auto batch = run.train_loader.batch(0);
  ASSERT_GT(batch.documents.size(0), 5) << "more than rows, and ends inside of them";
  const auto together =
      run.model->loss(batch.inputs, batch.targets, 1.0, batch.documents).item<double>();
  const auto inputs = batch.inputs.flatten(), targets = batch.targets.flatten();
  double alone = 0;
  for (int64_t i = 0; i < batch.documents.size(0); ++i) {
    const auto begin = batch.documents[i][0].item<int64_t>();
    const auto end = batch.documents[i][1].item<int64_t>();
    alone += run.model
                 ->loss(inputs.slice(0, begin, end).unsqueeze(0),
                        targets.slice(0, begin, end).unsqueeze(0), 1.0)
                 .item<double>();
  }
  EXPECT_NEAR(together, alone, 1e-6 * alone);
  stream.data.document_mask = false;
  const auto unmasked = train::assemble(stream, mesh::DeviceMesh());
  EXPECT_FALSE(unmasked.train_loader.batch(0).documents.defined());
}

}  // namespace
}  // namespace tessera::parity
