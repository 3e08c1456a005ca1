#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {
namespace {

struct Result {
  int exit_code = -1;
  std::string out, error;
};

Result tessera(std::vector<std::string> words) {
  CLI::App app("tessera");
  Result result;
  add_launch(app, result.exit_code);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  testing::internal::CaptureStdout();
  try {
    app.parse(words);
  } catch (const UserError& error) {
    result.error = error.what();
  } catch (const CLI::CallForHelp&) {
    result.out = app.help();
  } catch (const CLI::ParseError& error) {
    result.error = error.what();
  }
  result.out += testing::internal::GetCapturedStdout();
  return result;
}

TEST(LaunchCommand, WhatStandsBehindTheProgramBelongsToIt) {
  const auto result =
      tessera({"launch", "-n", "1", "echo", "-n", "5", "--log-dir=x", "--", "--help"});
  EXPECT_EQ(result.out, "[0]: 5 --log-dir=x -- --help\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(tessera({"launch", "sh", "-c", "exit 3"}).exit_code, 3);
}

TEST(LaunchCommand, TorchrunsSpellingsWork) {
  const auto result = tessera(
      {"launch", "--nproc_per_node=2", "--nnodes=2", "--node_rank=1", "--master_addr=n0",
       "--master_port=4000", "--no-prefix", "--max-restarts", "1", "sh", "-c",
       "[ $RANK$WORLD_SIZE$MASTER_ADDR$MASTER_PORT$TORCHELASTIC_MAX_RESTARTS = ${RANK}4n040001 ]"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.error, "");
}

TEST(LaunchCommand, BadInputIsOneLine) {
  EXPECT_THAT(tessera({"launch"}).error, testing::HasSubstr("no program"));
  EXPECT_THAT(tessera({"launch", "-n", "0", "true"}).error,
              testing::HasSubstr("at least 1, got 0"));
  EXPECT_THAT(tessera({"launch", "-n", "two", "true"}).error, testing::HasSubstr("two"));
  EXPECT_EQ(tessera({"launch", "--max-restart=2", "true"}).error,
            "launch: unknown option '--max-restart'; did you mean '--max-restarts'?");
  EXPECT_THAT(tessera({"launch", "--nnodes", "2", "true"}).error,
              testing::HasSubstr("--master-addr"));
  EXPECT_THAT(tessera({"launch", "--master-port", "0", "true"}).error, testing::HasSubstr("got 0"));
  EXPECT_THAT(tessera({"launch", "no_such_program"}).error, testing::HasSubstr("not found"));
}

TEST(LaunchCommand, HelpHasAnExample) {
  EXPECT_THAT(tessera({"launch", "--help"}).out,
              testing::HasSubstr("tessera launch -n 4 ./my_program"));
}

}  // namespace
}  // namespace tessera::cli
