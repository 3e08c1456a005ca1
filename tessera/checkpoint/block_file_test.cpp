// What is written comes back, whatever its size; what is damaged is found and named.
#include "tessera/checkpoint/block_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// A byte of a content in which no two blocks are alike.
std::byte byte_at(int64_t offset) {
  return static_cast<std::byte>((offset * 2654435761u + offset / 4096) >> 7);
}

std::span<const std::byte> fill(int64_t offset, std::span<std::byte> scratch) {
  for (auto& byte : scratch) byte = byte_at(offset++);
  return scratch;
}

IndexedFile write(const fs::path& folder, int64_t num_bytes) {
  return {"x", num_bytes, write_parts(folder / "x", num_bytes, fill)};
}

/// The bytes of all parts, which come in order and are none too large.
std::string read(const fs::path& folder, const IndexedFile& file,
                 const std::vector<BlockRange>& wanted) {
  std::string bytes;
  int64_t last = -1;
  read_parts(folder, file, wanted, [&](int64_t offset, std::span<const std::byte> part) {
    EXPECT_GT(offset, last);
    EXPECT_LE(std::ssize(part), kPartBytes);
    last = offset;
    bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
  });
  return bytes;
}

std::string expected_bytes(int64_t begin, int64_t end) {
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  fill(begin, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

class BlockFileSizes : public ::testing::TestWithParam<int64_t> {};

TEST_P(BlockFileSizes, ComeBack) {
  const TemporaryFolder folder;
  const int64_t size = GetParam();
  const auto file = write(folder.path(), size);
  EXPECT_EQ(fs::file_size(folder.path() / "x"), static_cast<uint64_t>(size));
  EXPECT_EQ(std::ssize(file.checksums), num_blocks(size));
  std::vector<Checksum> expected;
  const auto bytes = expected_bytes(0, size);
  append_checksums(std::as_bytes(std::span(bytes)), expected);
  EXPECT_EQ(file.checksums, expected);
  EXPECT_TRUE(read(folder.path(), file, {{0, size}}) == expected_bytes(0, size));
  EXPECT_TRUE(read_file(folder.path() / "x") == expected_bytes(0, size));
}

INSTANTIATE_TEST_SUITE_P(Bytes, BlockFileSizes,
                         ::testing::Values(0, 1, kPageBytes - 1, kPageBytes, kPageBytes + 1,
                                           kBlockBytes - 1, kBlockBytes, kBlockBytes + 1,
                                           kPartBytes - 1, kPartBytes, kPartBytes + 1,
                                           3 * kPartBytes + kBlockBytes + 5));

TEST(BlockFile, PartsOfIt) {
  const TemporaryFolder folder;
  const int64_t size = 2 * kPartBytes + 100;
  const auto file = write(folder.path(), size);
  EXPECT_EQ(read(folder.path(), file, {}), "");
  const int64_t begin = 3 * kBlockBytes, end = begin + kPartBytes + kBlockBytes;
  const auto bytes =
      read(folder.path(), file, {{0, kBlockBytes}, {begin, end}, {2 * kPartBytes, size}});
  EXPECT_TRUE(bytes == expected_bytes(0, kBlockBytes) + expected_bytes(begin, end) +
                           expected_bytes(2 * kPartBytes, size));
}

TEST(BlockFile, FromMemoryOfTheSource) {
  const TemporaryFolder folder;
  const int64_t size = kPartBytes + kPageBytes + 7;
  const PageBuffer memory(size);
  memory.populate();
  fill(0, memory.bytes());
  const auto checksums =
      write_parts(folder.path() / "x", size,
                  [&](int64_t offset, std::span<std::byte> scratch) -> std::span<const std::byte> {
                    return memory.bytes().subspan(static_cast<size_t>(offset), scratch.size());
                  });
  EXPECT_TRUE(read(folder.path(), {"x", size, checksums}, {{0, size}}) == expected_bytes(0, size));
}

/// Memory file systems know no direct input and output, or pretend to.
TEST(BlockFile, OnAFileSystemInMemory) {
  const fs::path shared("/dev/shm/tessera.block_file_test." + std::to_string(::getpid()));
  fs::create_directory(shared);
  const auto file = write(shared, kPartBytes + 5);
  EXPECT_TRUE(read(shared, file, {{0, file.num_bytes}}) == expected_bytes(0, file.num_bytes));
  fs::remove_all(shared);
}

TEST(BlockFile, ADamagedByteIsFoundAndItsBlockNamed) {
  const TemporaryFolder folder;
  const int64_t size = kPartBytes + 2 * kBlockBytes + 10;
  const auto file = write(folder.path(), size);
  for (const int64_t at : {int64_t{0}, kBlockBytes - 1, kBlockBytes, kPartBytes - 1, kPartBytes,
                           kPartBytes + kBlockBytes + 1, size - 1}) {
    std::fstream stream(folder.path() / "x", std::ios::in | std::ios::out | std::ios::binary);
    const auto flip = [&](std::byte with) {
      stream.seekp(at).put(static_cast<char>(byte_at(at) ^ with)).flush();
    };
    flip(std::byte{4});
    const int64_t block = at / kBlockBytes * kBlockBytes;
    const auto where = "x: damaged: bytes " + std::to_string(block) + " to " +
                       std::to_string(std::min(block + kBlockBytes, size) - 1) + " ";
    EXPECT_THAT(refusal([&] { read(folder.path(), file, {{0, size}}); }), HasSubstr(where)) << at;
    // Whoever reads other blocks is not concerned.
    EXPECT_EQ(refusal([&] { read(folder.path(), file, {{0, block}}); }), "(accepted)");
    flip(std::byte{0});
    ASSERT_EQ(refusal([&] { read(folder.path(), file, {{0, size}}); }), "(accepted)");
  }
}

TEST(BlockFile, OtherFilesThanExpectedAreNamed) {
  const TemporaryFolder folder;
  const auto file = write(folder.path(), 5000);
  const auto path = folder.path() / "x";
  const auto line = [&] {
    auto reading = refusal([&] { read(folder.path(), file, {{0, 5000}}); });
    EXPECT_EQ(refusal([&] { check_size(folder.path(), file); }), reading);
    return reading;
  };
  EXPECT_EQ(line(), "(accepted)");
  fs::resize_file(path, 4999);
  EXPECT_THAT(line(), EndsWith("x: truncated: expected 5000 bytes, got 4999"));
  fs::resize_file(path, 5001);
  EXPECT_THAT(line(), EndsWith("x: too long: expected 5000 bytes, got 5001"));
  fs::rename(path, folder.path() / "y");
  EXPECT_THAT(line(), EndsWith("x: missing from the checkpoint"));
  fs::create_symlink("y", path);
  EXPECT_THAT(line(), HasSubstr("x: a symbolic link; expected a file of the checkpoint"));
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_THAT(line(), EndsWith("x: expected a regular file"));
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(line(), EndsWith("x: expected a regular file"));
}

TEST(BlockFile, WritesNewFilesOnly) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  EXPECT_THROW(write(folder.path(), 10), SystemError);
  EXPECT_EQ(read_file(folder.path() / "x"), "old");
  fs::remove(folder.path() / "x");
  fs::create_symlink("elsewhere", folder.path() / "x");
  EXPECT_THROW(write(folder.path(), 10), SystemError);
  EXPECT_FALSE(fs::exists(folder.path() / "elsewhere"));
  EXPECT_THROW(write(folder.path() / "absent", 10), SystemError);
}

TEST(BlockFile, ASourceThatThrowsEndsTheWriting) {
  const TemporaryFolder folder;
  const auto source = [](int64_t offset, std::span<std::byte> scratch) {
    if (offset > kPartBytes) user_error("no more");
    return fill(offset, scratch);
  };
  EXPECT_EQ(refusal([&] { write_parts(folder.path() / "x", 4 * kPartBytes, source); }), "no more");
}

/// A limit on files stands in for a full disk.
TEST(BlockFile, NoSpace) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = static_cast<rlim_t>(kPartBytes), .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::string line = "(accepted)";
  try {
    write(folder.path(), 3 * kPartBytes);
  } catch (const SystemError& error) {
    line = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(line, (folder.path() / "x").string() + ": cannot be written: File too large");
}

}  // namespace
}  // namespace tessera::checkpoint
