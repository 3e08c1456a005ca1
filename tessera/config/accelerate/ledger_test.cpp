// The ledgers of the files of Accelerate's repository, as stored in tests/golden/ledgers. After a
// change that is meant: TESSERA_UPDATE_GOLDEN=1 build/dev/bin/tessera_config_accelerate_test, and
// read the difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/config/accelerate/show.h"
#include "tessera/config/accelerate/testing.h"
#include "tessera/config/run_config.h"

namespace tessera::config::accelerate {
namespace {

using tessera::testing::message_of;
namespace fs = std::filesystem;

const fs::path kFixtures = "tests/fixtures/accelerate_configs", kGolden = "tests/golden/ledgers";

std::vector<fs::path> fixtures() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kFixtures)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

/// What `tessera config show` prints, or the error.
std::string shown(const fs::path& file) {
  try {
    return show_text(translate_file(file));
  } catch (const UserError& error) {
    return fmt::format("tessera: {}\n", error.what());
  }
}

TEST(LedgerTest, GoldenFiles) {
  const bool update = std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr;
  ASSERT_EQ(fixtures().size(), 21U);
  for (const auto& file : fixtures()) {
    const auto golden = kGolden / (file.filename().string() + ".txt");
    const auto text = shown(file);
    if (update) write_file(golden, text);
    EXPECT_EQ(text, read_file(golden)) << golden;
  }
}

TEST(LedgerTest, WhatIsNotRefusedRuns) {
  int num_run = 0;
  for (const auto& file : fixtures()) {
    if (shown(file).find("tessera: ") == 0) continue;
    const auto translation = translate_file(file);
    if (message_of([&] { check_ledger(translation.ledger, false); }) != "no error") continue;
    auto loaded = recipe_with(translation.job);
    loaded.config.parallel.num_ranks = translation.launch.num_processes;
    EXPECT_EQ(message_of([&] { check(loaded.config, loaded.origins); }), "no error") << file;
    ++num_run;
  }
  EXPECT_GE(num_run, 14);
}

TEST(LedgerTest, KindsOfFiles) {
  EXPECT_EQ(kind_of("recipes/tiny_llama.yaml"), FileKind::job);
  EXPECT_EQ(kind_of(kFixtures / "templates/fsdp.yaml"), FileKind::accelerate);
  EXPECT_EQ(kind_of(kFixtures / "deepspeed_config_templates/zero_stage1_config.json"),
            FileKind::deepspeed);
}

TEST(LedgerTest, Json) {
  const auto json = show_json(translate_file(kFixtures / "templates/multi_node.yaml"));
  EXPECT_EQ(json["launch"]["num_machines"], 2);
  EXPECT_EQ(json["job"]["parallel.num_ranks"]["value"], "4");
  EXPECT_EQ(json["ledger"][0]["verdict"], "translated");
}

}  // namespace
}  // namespace tessera::config::accelerate
