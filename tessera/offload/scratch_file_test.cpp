#include "tessera/offload/scratch_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ScratchFileTest : public testing::TemporaryFolderTest {
 protected:
  template <typename Make>
  static std::string error_of(const Make& make) {
    try {
      make();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(ScratchFileTest, HasItsRoomAndNoName) {
  constexpr int64_t kBytes = 8 << 20;
  const ScratchFile file(folder_ / "new" / "deep", kBytes, /*any_file_system=*/true);
  struct stat found {};
  ASSERT_EQ(::fstat(file.fd(), &found), 0);
  EXPECT_EQ(found.st_size, kBytes);
  EXPECT_GE(found.st_blocks * 512, kBytes);  // preallocated
  EXPECT_EQ(found.st_nlink, 0u);
  EXPECT_TRUE(fs::is_empty(folder_ / "new" / "deep"));
}

TEST_F(ScratchFileTest, AKilledProcessLeavesNothing) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const auto child = ::fork();
  if (child == 0) {
    const ScratchFile file(folder_, 1 << 20, /*any_file_system=*/true);
    EXPECT_EQ(::write(ready[1], "x", 1), 1);
    ::pause();
  }
  char told = 0;
  ASSERT_EQ(::read(ready[0], &told, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::is_empty(folder_));
  ::close(ready[0]), ::close(ready[1]);
}

TEST_F(ScratchFileTest, MemoryIsNoDrive) {
  if (why_no_drive("/dev/shm").empty()) GTEST_SKIP() << "no tmpfs here";
  EXPECT_EQ(error_of([] { ScratchFile("/dev/shm", 4096, /*any_file_system=*/false); }),
            "paths: /dev/shm: expected a folder on a drive, this one is on memory (tmpfs); "
            "choose another, or set any_file_system to true");
  EXPECT_GE(ScratchFile("/dev/shm", 4096, /*any_file_system=*/true).fd(), 0);
}

TEST_F(ScratchFileTest, RoomThatIsNotThereIsNamed) {
  const auto error =
      error_of([&] { ScratchFile(folder_, int64_t{1} << 42, /*any_file_system=*/true); });
  EXPECT_THAT(error, HasSubstr("paths: " + folder_.string() + ": needs 4.0 TiB, free "));
}

TEST_F(ScratchFileTest, NoNameIsNoFolder) {
  EXPECT_EQ(error_of([] { ScratchFile("", 4096, /*any_file_system=*/true); }),
            "paths: expected a folder, got an empty name");
}

TEST_F(ScratchFileTest, AFileIsNoFolder) {
  const auto path = folder_ / "file";
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_THAT(error_of([&] { ScratchFile(path / "below", 4096, /*any_file_system=*/true); }),
              HasSubstr("expected a folder that can be written"));
}

}  // namespace
}  // namespace tessera::offload
