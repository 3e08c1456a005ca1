// One training loop under DDP, FSDP and DeepSpeed configurations, beside the plain loop on one
// rank.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/program/program.h"

namespace tessera {
namespace {

/// The numbers behind "loss".
std::vector<double> losses(const std::string& printed) {
  std::vector<double> found;
  std::istringstream words(printed);
  for (std::string word; words >> word;) {
    if (word == "loss" && words >> word) found.push_back(std::stod(word));
  }
  return found;
}

class AcceleratedLoopTest : public ::testing::TestWithParam<std::string> {};

TEST_P(AcceleratedLoopTest, PrintsTheLossesOfThePlainLoop) {
  const auto plain = run_tessera({"launch", "-n", "1", "--no-prefix", TESSERA_PLAIN_LOOP});
  ASSERT_EQ(plain.exit_code, 0) << plain.error;
  const auto expected = losses(plain.out);
  ASSERT_EQ(expected.size(), 15u);
  const auto found =
      run_tessera({"launch", "--config_file", "examples/accelerate/configs/" + GetParam(),
                   "--no-prefix", TESSERA_ACCELERATED_LOOP});
  ASSERT_EQ(found.exit_code, 0) << found.error;
  const auto accelerated = losses(found.out);
  ASSERT_EQ(accelerated.size(), expected.size()) << found.out;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(accelerated[i], expected[i], 1e-5 + 1e-4 * expected[i]) << "epoch " << i + 1;
  }
}
INSTANTIATE_TEST_SUITE_P(Configs, AcceleratedLoopTest,
                         ::testing::Values("ddp.yaml", "fsdp.yaml", "deepspeed.yaml"));

}  // namespace
}  // namespace tessera
