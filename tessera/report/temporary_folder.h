// A folder that lasts as long as a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace tessera::report {

class TemporaryFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) /
                                  ("tessera_report_test." + std::to_string(::getpid()));
};

}  // namespace tessera::report
