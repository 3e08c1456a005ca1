// Questions that validations ask (data.choices): in every layout what `tessera evaluate` finds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/file.h"
#include "tessera/generate/codec.h"
#include "tessera/inference/scores.h"
#include "tessera/train/document_scores.h"
#include "tessera/train/step.h"
#include "tests/parity/fixture.h"
#include "tests/support/shared_folder.h"

namespace tessera::parity {
namespace {

constexpr int64_t kBatch = 6, kSeqLen = 24;

/// Bytes, and eleven questions of two to four choices, the first empty, some longer than a row. The parent writes them: call it before ranks
/// start.
config::RunConfig job_with_questions(const SharedFolder& folder) {
  config::RunConfig job;
  job.model.preset = "micro";
  const auto text = (folder.path() / "text.txt").string();
  const auto questions = (folder.path() / "questions.jsonl").string();
  std::string words, rows;
  for (int i = 0; i < 2000; ++i) words += static_cast<char>('a' + i * i / 7 % 26);
  for (int i = 0; i < 11; ++i) {
    nlohmann::json row{{"question", words.substr(size_t(7) * i, size_t(4) * i)},
                       {"choices", nlohmann::json::array()},
                       {"answer", i % 2}};
    for (int choice = 0; choice < 2 + i % 3; ++choice)
      row["choices"].push_back(words.substr(size_t(31) * i + choice, size_t(1) + i % 4 + choice));
    rows += row.dump() + "\n";
  }
  if (!is_there(text)) write_file(text, words);
  if (!is_there(questions)) write_file(questions, rows);
  job.data.train = {text};
  job.data.choices = {questions};
  job.data.validation_fraction = 0.2;
  job.data.seq_len = kSeqLen;
  job.train.global_batch = kBatch;
  job.train.run_dir = folder.path() / "run";
  return job;
}

/// The scores of `tessera evaluate`: each choice by itself, on one rank.
std::vector<double> scores_alone(train::Run& run) {
  const generate::Codec codec(nullptr, run.model->shape().vocab_size);
  const documents::TextEncoding bytes{
      .whole = [&](const std::string& text) { return codec.encode(text); },
      .plain = [&](const std::string& text) { return codec.encode_plain(text); }};
  std::vector<inference::Passage> passages;
  for (const auto& row : run.questions->rows) {
    for (const auto& choice : documents::encode_choices(row, bytes, kSeqLen)) {
      auto& passage = passages.emplace_back();
      for (const auto token : choice) {
        passage.tokens.push_back(documents::id_of(token));
        passage.scored.push_back(documents::is_learned(token));
      }
    }
  }
  std::vector<double> found;
  for (const auto& score : inference::scores_of(*run.model, passages))
    found.push_back(score.log_probability);
  return found;
}

std::vector<double> figures_of(train::Run& run) {
  const auto result = train::validate(run);
  std::vector<double> values;
  for (const auto& figure : result.value().figures) values.push_back(figure.value);
  return values;
}

TEST(ChoicesParity, AreAnsweredAlikeInEveryLayout) {
  const SharedFolder folder;
  const auto base = job_with_questions(folder);
  const auto expected = folder.path() / "expected";
  for (const mesh::MeshShape shape : {mesh::MeshShape{},
                                      {.dp_shard = 2},
                                      {.dp_shard = 3},
                                      {.tp = 2},
                                      {.pp = 2},
                                      {.pp = 2, .dp_shard = 2}}) {
    on_mesh({.shape = shape}, [&](const mesh::DeviceMesh& mesh) {
      auto job = base;
      job.parallel.num_ranks = mesh.size();
      job.parallel.tp = shape.tp, job.parallel.pp = shape.pp;
      job.parallel.placement = parallel::Placement::full_shard;
      auto run = train::assemble(job, mesh);
      ASSERT_EQ(run.questions->rows.size(), 11U);
      const auto scores = train::document_scores(run, run.questions->choices);
      const auto figures = figures_of(run);
      ASSERT_EQ(figures.size(), 2U);
      if (mesh.size() == 1) {
        const auto alone = scores_alone(run);
        ASSERT_EQ(scores.size(), alone.size());
        for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(scores[i], alone[i], 1e-4) << i;
        write_file(expected, nlohmann::json{scores, figures}.dump());
        return;
      }
      const auto known =
          nlohmann::json::parse(read_file(expected)).get<std::vector<std::vector<double>>>();
      for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], known[0][i], 1e-4) << i;
      EXPECT_EQ(figures, known[1]);
    });
  }
}

}  // namespace
}  // namespace tessera::parity
