// What others left, or plant, where a file or folder is to be written.
#include "tessera/base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "tessera/base/digest.h"
#include "tessera/base/testing.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class HostileFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto name = (fs::path(::testing::TempDir()) / "tessera_file.XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.insert(entry.path().filename());
    return found;
  }

  fs::path folder_;
};

// Named by the thread's number, two in two containers would share one.
TEST_F(HostileFolderTest, WritersOfOneProcessHaveFilesOfTheirOwn) {
  const auto path = folder_ / "out";
  AtomicFile first(path), second(path);
  first.write("first");
  second.write("second, longer");
  EXPECT_EQ(names().size(), 2u);
  first.commit();
  EXPECT_EQ(read_file(path), "first");
  second.commit();
  EXPECT_EQ(read_file(path), "second, longer");
  EXPECT_EQ(names(), std::set<std::string>{"out"});
}

TEST_F(HostileFolderTest, APlantedLinkIsNotWrittenThrough) {
  const auto path = folder_ / "out", other = folder_ / "other";
  write_file(other, "somebody's");
  fs::create_symlink(other, folder_ / fmt::format("out.{}.partial", ::gettid()));
  fs::create_symlink(other, path);
  write_file(path, "ours");
  EXPECT_EQ(read_file(other), "somebody's");
  EXPECT_EQ(read_file(path), "ours");
  EXPECT_FALSE(fs::is_symlink(path));
}

TEST_F(HostileFolderTest, TemporaryFoldersAreNewAndEmpty) {
  const auto one = make_temporary_folder(folder_ / "out");
  const auto other = make_temporary_folder(folder_ / "out");
  EXPECT_NE(one, other);
  EXPECT_TRUE(fs::is_empty(one));
  EXPECT_TRUE(one.string().ends_with(".partial"));
}

TEST_F(HostileFolderTest, ARenameToWhatIsThereIsRefused) {
  fs::create_directories(folder_ / "a");
  fs::create_directories(folder_ / "b");
  EXPECT_FALSE(rename_new(folder_ / "a", folder_ / "b"));  // rename() replaces an empty folder
  EXPECT_TRUE(rename_new(folder_ / "a", folder_ / "c"));
  EXPECT_EQ(names(), (std::set<std::string>{"b", "c"}));
}

TEST_F(HostileFolderTest, ANamedPipeIsNotAppendedTo) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(testing::message_of([&] { open_to_append(pipe); }),
            pipe.string() + ": expected a regular file, got a named pipe");
  ::close(open_to_append(folder_ / "new"));
  EXPECT_EQ(read_file(folder_ / "new"), "");
}

TEST_F(HostileFolderTest, ALinkThatLeadsNowhereIsThere) {
  fs::create_symlink("nowhere", folder_ / "link");
  EXPECT_TRUE(is_there(folder_ / "link"));
  EXPECT_FALSE(is_there(folder_ / "nowhere"));
  EXPECT_FALSE(is_there(folder_ / "nowhere" / "below"));
  EXPECT_THROW(is_there("/" + std::string(5000, 'x')), SystemError);
}

/// A file of two pages and one, of which a page stays.
void cut(const fs::path& path) { fs::resize_file(path, 4096); }

TEST_F(HostileFolderTest, WhatIsCutReadsAsZerosAndIsNamed) {
  write_file(folder_ / "cut", std::string(3 * 4096, 'x'));
  const auto run = [&] {
    watch_mapped_files(WhenCut::note);
    const MappedFile file(folder_ / "cut"), other(folder_ / "cut");
    if (lost_file() != "") ::_exit(3);
    cut(folder_ / "cut");
    if (file.text()[0] != 'x' || file.text()[5000] != 0 || file.text()[9000] != 0) ::_exit(4);
    const auto line = testing::message_of([] { check_mapped_files(); });
    ::_exit(line == (folder_ / "cut").string() +
                        ": was cut while it was read, or its disk fails; make it again"
                ? 0
                : 5);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_F(HostileFolderTest, WhatIsCutEndsACommandWithALine) {
  write_file(folder_ / "cut", std::string(3 * 4096, 'x'));
  const auto run = [&] {
    watch_mapped_files(WhenCut::end);
    const MappedFile file(folder_ / "cut");
    cut(folder_ / "cut");
    ::_exit(file.text()[5000]);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(2), "tessera: .*/cut: was cut while it was read");
}

TEST_F(HostileFolderTest, AnotherBusErrorEndsTheProcess) {
  const auto run = [] {
    watch_mapped_files(WhenCut::note);
    ::raise(SIGBUS);
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(run(), ::testing::KilledBySignal(SIGBUS), "");
}

// As `git hash-object` names them.
TEST(GitBlobName, IsGitsOwn) {
  EXPECT_EQ(git_blob_name(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(git_blob_name("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  for (const auto& [size, name] : {std::pair{55, "d1985ddc2983785702b9a90effd5aff2f7cfdca4"},
                                   {56, "1f973e890f52da1f22fa7e5620a628bc4ee74cb3"},
                                   {57, "d28c6cde5a5ab0b138bd53a288c23e8c011c4171"},
                                   {200, "1d33d17ad3abab24046a78cf5a4abc31e69865b3"}}) {
    EXPECT_EQ(git_blob_name(std::string(static_cast<size_t>(size), 'a')), name) << size;
  }
}

// RFC 4231, test cases 2 and 6.
TEST(Hmac, IsTheStandards) {
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace tessera
