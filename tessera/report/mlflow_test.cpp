#include "tessera/report/mlflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre, ::testing::HasSubstr, ::testing::MatchesRegex;

// tests/integration/mlflow.sh lets the real MLflow read a run.
class MlflowRunTest : public tessera::testing::TemporaryFolderTest {
 protected:
  std::vector<fs::path> runs() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / "mlruns" / "0")) {
      if (entry.is_directory()) found.push_back(entry.path());
    }
    return found;
  }
  std::string text(const std::string& name) const { return read_file(runs().at(0) / name); }
};

using Scalars = std::vector<Scalar>;

TEST_F(MlflowRunTest, AFigureIsALineOfItsFile) {
  MlflowRun run({folder_});
  EXPECT_THAT(runs().at(0).filename().string(), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(text("meta.yaml"), HasSubstr("end_time: null\n"));
  EXPECT_THAT(text("meta.yaml"), HasSubstr("\nstatus: 1\n"));
  run.hyper_parameters({{"lr", 3e-4}, {"type", std::string("adamw")}, {"fused", true}});
  EXPECT_EQ(text("params/lr"), "0.0003");
  EXPECT_EQ(text("params/fused"), "true");
  run.scalars(7, Scalars{{"train/loss", 0.5}});
  EXPECT_THAT(text("metrics/train/loss"), MatchesRegex("[0-9]{13} 0.5 7\n"));
  run.finish(true);
  EXPECT_THAT(text("meta.yaml"), MatchesRegex("(.|\n)*\nstatus: 3\n(.|\n)*"));
  EXPECT_EQ(text("tags/mlflow.runName"), folder_.filename().string());
}

TEST_F(MlflowRunTest, ARunThatGoesOnIsTheSameRun) {
  {
    MlflowRun run({folder_});
    for (int64_t step = 1; step <= 5; ++step) run.scalars(step, Scalars{{"a/b", 1}});
    run.finish(false);
    EXPECT_THAT(text("meta.yaml"), HasSubstr("\nstatus: 4\n"));
  }
  MlflowRun run({.run_dir = folder_, .steps_done = 2});
  run.scalars(3, Scalars{{"a/b", 2}});
  EXPECT_EQ(runs().size(), 1);
  EXPECT_THAT(text("metrics/a/b"), MatchesRegex("[0-9]+ 1 1\n[0-9]+ 1 2\n[0-9]+ 2 3\n"));
  MlflowRun another({folder_});
  EXPECT_EQ(runs().size(), 2);
}

TEST_F(MlflowRunTest, NoNameLeadsOutOfTheRun) {
  MlflowRun run({folder_});
  const Scalars scalars{{"../../out", 1}, {"/abs", 1}, {"a//b", 1},
                        {"", 1},          {"50 %", 1}, {"..", 1}};
  run.scalars(1, scalars);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(runs().at(0) / "metrics")) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  EXPECT_THAT(names, ElementsAre("50 _", "_", "___", "_______out", "__abs", "a"));
}

}  // namespace
}  // namespace tessera::report
