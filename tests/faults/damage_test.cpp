// A damaged checkpoint is noticed, wherever the damage is, and the one before it is taken.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/data/testing.h"
#include "tests/faults/check.h"
#include "tests/faults/driver.h"
#include "tests/support/temporary_folder.h"

namespace tessera::faults {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Driver driver;
    const auto end = driver.save({.folder = folder_.path(), .first = 1, .last = 2});
    ASSERT_THAT(end.saved, ElementsAre(1, 2));
    for (const auto& entry : fs::directory_iterator(newest_)) files_.push_back(entry.path());
    ASSERT_EQ(files_.size(), 4U);  // marker, index, shard, asset
  }

  /// One byte of a file is another.
  static void flip(const fs::path& file, uintmax_t position) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(position));
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(position));
    stream.put(byte);
  }

  void expect_passed_over(const fs::path& file) const {
    const auto found = newest_whole(folder_.path());
    EXPECT_EQ(found.newest, 1);
    EXPECT_THAT(found.refused,
                ElementsAre(AllOf(HasSubstr(file.filename().string()), HasSubstr(newest_.string()),
                                  Not(HasSubstr("\n")))));
  }

  tessera::testing::TemporaryFolder folder_;
  const fs::path newest_ = folder_.path() / "step_00000002";
  std::vector<fs::path> files_;
};

TEST_F(DamageTest, AFlippedByteOfAnyFile) {
  for (const auto& file : files_) {
    const auto size = fs::file_size(file);
    for (const auto position : {uintmax_t{0}, size / 3, size / 2, size - 1}) {
      SCOPED_TRACE(fmt::format("byte {} of {}", position, file.string()));
      flip(file, position);
      expect_passed_over(file);
      flip(file, position);
    }
  }
  EXPECT_EQ(newest_whole(folder_.path()).newest, 2);
}

TEST_F(DamageTest, AFlippedByteOfTheMarker) {
  const auto marker = newest_ / checkpoint::kMarkerFile;
  for (uintmax_t position = 0; position < fs::file_size(marker); ++position) {
    flip(marker, position);
    SCOPED_TRACE(fmt::format("byte {}: {}", position, read_file(marker)));
    expect_passed_over(marker);
    flip(marker, position);
  }
  EXPECT_EQ(newest_whole(folder_.path()).newest, 2);
}

TEST_F(DamageTest, AFileThatIsGoneOrCut) {
  const auto aside = folder_.path() / "aside";
  for (const auto& file : files_) {
    SCOPED_TRACE(file);
    fs::rename(file, aside);
    expect_passed_over(file);
    fs::copy(aside, file);
    fs::resize_file(file, fs::file_size(file) - 1);
    expect_passed_over(file);
    fs::rename(aside, file);
  }
  EXPECT_EQ(newest_whole(folder_.path()).newest, 2);
}

TEST_F(DamageTest, OfAllCheckpointsLeavesNone) {
  for (const auto* step : {"step_00000001", "step_00000002"}) {
    flip(folder_.path() / step / "shard_00000.safetensors", 100000);
  }
  const auto found = newest_whole(folder_.path());
  EXPECT_FALSE(found.newest);
  EXPECT_THAT(found.refused, ElementsAre(HasSubstr("step_00000002"), HasSubstr("step_00000001")));
}

}  // namespace
}  // namespace tessera::faults
