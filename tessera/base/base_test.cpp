#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/nearest.h"
#include "tessera/base/pattern.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

TEST(Units, ReadAsPeopleWriteThem) {
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_bytes(3 * 1024 * 1024 / 2), "1.5 MiB");
  EXPECT_EQ(format_seconds(0.83), "830 ms");
  EXPECT_EQ(format_seconds(185), "3 min 05 s");
  EXPECT_EQ(format_seconds(7800), "2 h 10 min");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(58.07e6), "58.1 M");
}

TEST(Nearest, FindsTypingMistakesAndNothingElse) {
  const std::vector<std::string> keys{"learning_rate", "weight_decay", "steps"};
  EXPECT_EQ(nearest("lerning_rate", keys), "learning_rate");
  EXPECT_EQ(nearest("setps", keys), "steps");
  EXPECT_EQ(nearest("zzz", keys), "");
  EXPECT_EQ(did_you_mean("step", keys), "; did you mean 'steps'?");
}

class FileTest : public ::testing::Test {
 protected:
  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "tessera_file_test";
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(FileTest, UncommittedWriteLeavesTheOldContentAndNoTemporary) {
  const auto path = folder_ / "a.txt";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  write_file(path, "new");
  EXPECT_EQ(read_file(path), "new");
}

TEST_F(FileTest, MissingFileAndFolderAreUserErrors) {
  EXPECT_THROW(MappedFile(folder_ / "missing"), UserError);
  EXPECT_THROW(MappedFile{folder_}, UserError);
  write_file(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
}

TEST_F(FileTest, ANamedPipeIsRefusedAtOnce) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  try {
    read_file(pipe);
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.what(), pipe.string() + ": expected a regular file, got a named pipe");
  }
}

TEST_F(FileTest, WhetherAFolderCanBeWritten) {
  write_file(folder_ / "file", "");
  EXPECT_EQ(why_not_writable(folder_), "");
  EXPECT_EQ(why_not_writable(folder_ / "new" / "newer"), "");
  EXPECT_EQ(why_not_writable(folder_ / "file"), "Not a directory");
  EXPECT_EQ(why_not_writable(folder_ / "file" / "new"), "Not a directory");
  EXPECT_NE(why_not_writable("/proc/new"), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST(AtomicFile, ThreadsMayWriteOnePath) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "threads.txt";
  std::atomic<int> failures = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 20; ++round) {
          try {
            write_file(path, "the same");
          } catch (const SystemError&) {
            ++failures;
          }
        }
      });
    }
  }
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(read_file(path), "the same");
  std::filesystem::remove(path);
}

TEST(Pattern, StarsStandForAnything) {
  EXPECT_TRUE(matches("layers.*", "layers.3"));
  EXPECT_TRUE(matches("*.mlp.*_proj", "layers.3.mlp.up_proj"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_FALSE(matches("layers.*", "model.layers.3"));
  EXPECT_FALSE(matches("head", "heads"));
}

}  // namespace
}  // namespace tessera
