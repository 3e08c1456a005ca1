#include "tessera/report/csv_log.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/report/output.h"
#include "tests/support/temporary_folder.h"

namespace tessera::report {
namespace {

class CsvLogTest : public tessera::testing::TemporaryFolderTest {
 protected:
  std::string text() const { return read_file(folder_ / "metrics.csv"); }
};

using Scalars = std::vector<Scalar>;

TEST_F(CsvLogTest, AFigureWithANewNameIsANewColumnOfEveryRow) {
  CsvLog log({folder_});
  EXPECT_EQ(text(), "step\n");
  log.scalars(1, Scalars{{"loss", 0.5}});
  log.scalars(2, Scalars{{"accuracy, of \"all\"", 1e-9}, {"loss", 0.25}});
  log.scalars(3, Scalars{{"loss", std::numeric_limits<double>::quiet_NaN()}});
  log.scalars(4, Scalars{});
  EXPECT_EQ(text(), "step,loss,\"accuracy, of \"\"all\"\"\"\n1,0.5,\n2,0.25,1e-09\n3,nan,\n4,,\n");
}

TEST_F(CsvLogTest, ARunThatGoesOnKeepsWhatItKeeps) {
  {
    CsvLog log({folder_});
    for (int64_t step = 1; step <= 5; ++step) {
      log.scalars(step, Scalars{{"a\nb", 0.5}, {"c", 1}});
    }
  }
  append_to_file(folder_ / "metrics.csv", "6,0.");  // a crash in the middle of a row
  CsvLog log({.run_dir = folder_, .steps_done = 2});
  log.scalars(3, Scalars{{"c", 2}, {"d", 3}});
  EXPECT_EQ(text(), "step,\"a\nb\",c,d\n1,0.5,1,\n2,0.5,1,\n3,,2,3\n");
  CsvLog again({folder_});
  EXPECT_EQ(text(), "step\n");
}

TEST_F(CsvLogTest, AnotherTableIsNotGoneOnWith) {
  for (const auto* other : {"", "name,step\n", "step,a\nx,1\n"}) {
    write_file(folder_ / "metrics.csv", other);
    EXPECT_THROW(CsvLog({.run_dir = folder_, .steps_done = 1}), UserError) << other;
    EXPECT_EQ(text(), other);
  }
}

TEST_F(CsvLogTest, StepsHaveTheFiguresOfAllSinks) {
  const auto log = make_sink("csv", {folder_});
  log->step({.step = 1, .loss = 2, .validation_loss = 3});
  log->finish(true);
  EXPECT_EQ(text(),
            "step,train/loss,train/grad_norm,train/learning_rate,train/tokens_seen,"
            "speed/step_seconds,speed/tokens_per_second,speed/communication_wait_seconds,"
            "memory/bytes,validation/loss\n1,2,0,0,0,0,0,0,0,3\n");
  EXPECT_THROW(make_sink("cvs", {folder_}), UserError);
}

}  // namespace
}  // namespace tessera::report
