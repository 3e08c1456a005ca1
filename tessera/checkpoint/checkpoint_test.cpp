// A checkpoint as it is read: any elements of any tensor, wherever its parts lie.
#include "tessera/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tessera/base/file.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/checkpoint/write_checkpoint.h"
#include "tessera/data/testing.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using data::testing::TemporaryFolder;
using testing::Bytes;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::read_all;

template <typename T>
std::vector<T> counting(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 2654435761u >> 5);
  return values;
}

/// Larger than several blocks, and of every size of element.
MemorySource large_source() {
  MemorySource source;
  source.add("f32", DType::f32, {700, 1001}, counting<uint32_t>(700 * 1001));
  source.add("bf16", DType::bf16, {1000003}, counting<uint16_t>(1000003));
  source.add("i8", DType::i8, {3, 5}, counting<uint8_t>(15));
  source.add("i64", DType::i64, {2, 3}, counting<uint64_t>(6));
  source.add("scalar", DType::f32, {}, std::vector<float>{2.5f});
  source.add("none", DType::f32, {0, 7}, std::vector<float>{});
  source.add_counting("optimizer/exp_avg/f32", {33});
  return source;
}

void expect_equal(const TensorSource& got, const TensorSource& expected) {
  EXPECT_EQ(got.tensors(), expected.tensors());
  for (const auto& [name, info] : expected.tensors()) {
    EXPECT_TRUE(read_all(got, name) == read_all(expected, name)) << name;
  }
}

class CheckpointFiles : public ::testing::TestWithParam<int64_t> {};

TEST_P(CheckpointFiles, HoldTheWholeAndAnyPartOfIt) {
  const TemporaryFolder folder;
  const auto source = large_source();
  write_checkpoint(source, folder.path() / "c", {.about = {.step = 9}, .num_files = GetParam()});
  const Checkpoint found(folder.path() / "c");
  EXPECT_EQ(std::ssize(found.index().files), GetParam());
  expect_equal(found, source);

  std::mt19937_64 random(GetParam());
  std::vector<std::string> names;
  for (const auto& [name, info] : source.tensors()) names.push_back(name);
  std::vector<Bytes> parts(50), expected(50);
  std::vector<Checkpoint::Request> requests;
  for (size_t i = 0; i < parts.size(); ++i) {  // many of them overlap
    const auto& name = names[random() % names.size()];
    const auto& info = source.info(name);
    const auto begin = static_cast<int64_t>(random() % uint64_t(info.num_elements() + 1));
    const auto length = static_cast<int64_t>(random() % uint64_t(info.num_elements() - begin + 1));
    parts[i].resize(static_cast<size_t>(length * dtype_bytes(info.dtype)));
    expected[i].resize(parts[i].size());
    source.read(name, begin, expected[i]);
    requests.push_back({name, begin, parts[i]});
  }
  found.read_all(requests);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(parts[i] == expected[i]) << requests[i].name << " from " << requests[i].begin;
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, CheckpointFiles, ::testing::Values(1, 2, 3, 7, 40));

/// As ranks write: pieces of a tensor in any order over the files.
TEST(Checkpoint, ReadsPiecesInAnyOrder) {
  const TemporaryFolder folder;
  MemorySource source;
  source.add_counting("a", {10});
  const auto partial = begin_checkpoint(folder.path(), 3);
  const std::vector<ShardLayout> layouts = {
      ShardLayout({{"a", source.info("a"), 8, 2}, {"a", source.info("a"), 0, 1}}),
      ShardLayout({{"a", source.info("a"), 1, 7}})};
  Index index{.step = 3};
  for (size_t file = 0; file < layouts.size(); ++file) {
    const auto& layout = layouts[file];
    std::string bytes(static_cast<size_t>(layout.num_bytes()), '\0');
    layout.fill(0, std::as_writable_bytes(std::span(bytes)),
                [&](size_t piece, int64_t begin, std::span<std::byte> destination) {
                  source.read("a", layout.pieces()[piece].begin + begin / 4, destination);
                });
    write_file(partial / shard_name(file), bytes);
    index.files.push_back({shard_name(file), layout.num_bytes(), {}});
    append_checksums(std::as_bytes(std::span(bytes)), index.files.back().checksums);
    layout.add_to(index, file);
  }
  check_complete(folder.path(), index);
  const Checkpoint found(finish_checkpoint(partial, index, std::nullopt));
  expect_equal(found, source);
  for (int64_t begin = 0; begin < 10; ++begin) {
    for (int64_t end = begin; end <= 10; ++end) {
      Bytes got(static_cast<size_t>(end - begin) * 4), expected(got.size());
      found.read("a", begin, got);
      source.read("a", begin, expected);
      EXPECT_EQ(got, expected) << begin << " to " << end;
    }
  }
}

/// What to spoil in a checkpoint, and what it is called then.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    MemorySource source;
    source.add("a", DType::u8, {3 * kBlockBytes}, counting<uint8_t>(3 * kBlockBytes));
    source.add_counting("b", {100});
    const auto asset = folder_.write("tokenizer.json", "{}");
    write_checkpoint(source, path_, {.about = {.step = 9}, .assets = {asset}, .num_files = 2});
  }
  std::string opening() const {
    return refusal([&] { Checkpoint opened(path_); });
  }
  std::string verifying() const {
    return refusal([&] { Checkpoint(path_).verify(); });
  }
  void flip(const std::string& file, int64_t at) const {
    std::fstream stream(path_ / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 16);
    stream.seekp(at).put(byte);
  }

  TemporaryFolder folder_;
  fs::path path_ = folder_.path() / "c";
};

TEST_F(DamagedCheckpoint, IsFineAtFirst) {
  const Checkpoint found(path_);
  int64_t bytes = 0;
  found.verify([&](int64_t more) { bytes += more; });
  EXPECT_EQ(bytes, found.num_bytes());
  EXPECT_EQ(checked_assets(found), (std::vector{path_ / "tokenizer.json"}));
}

TEST_F(DamagedCheckpoint, AFlippedBitIsFoundInEveryFile) {
  const auto size = static_cast<int64_t>(fs::file_size(path_ / shard_name(0)));
  for (const int64_t at : {int64_t{3}, int64_t{4095}, int64_t{4096}, kBlockBytes, size - 1}) {
    flip(shard_name(0), at);
    EXPECT_EQ(opening(), "(accepted)") << "the size is right";
    EXPECT_THAT(verifying(), HasSubstr("shard_00000.safetensors: damaged: bytes " +
                                       std::to_string(at / kBlockBytes * kBlockBytes) + " to "));
    flip(shard_name(0), at);
  }
  flip(shard_name(1), 5000);
  Bytes room(100);
  const Checkpoint found(path_);
  found.read("a", 0, room);  // in the other file
  EXPECT_THAT(refusal([&] { found.read("b", 0, room); }),
              HasSubstr("shard_00001.safetensors: damaged: bytes 0 to "));
  flip(shard_name(1), 5000);
  flip("tokenizer.json", 1);
  EXPECT_THAT(verifying(), HasSubstr("tokenizer.json: damaged: bytes 0 to 1 "));
  EXPECT_THAT(refusal([&] { checked_assets(found); }), HasSubstr("tokenizer.json: damaged"));
}

TEST_F(DamagedCheckpoint, AChangedIndexIsFound) {
  flip(kIndexFile, 50);
  EXPECT_THAT(opening(), EndsWith("index.json: damaged: expected the checksum in complete.json"));
}

TEST_F(DamagedCheckpoint, MissingFilesAreNamed) {
  fs::remove(path_ / "tokenizer.json");
  EXPECT_THAT(opening(), EndsWith("tokenizer.json: missing from the checkpoint"));
  fs::remove(path_ / kIndexFile);
  EXPECT_THAT(opening(), HasSubstr("index.json: cannot be opened"));
  fs::remove(path_ / kMarkerFile);
  EXPECT_THAT(opening(), EndsWith("c: not complete: expected complete.json in it, found none"));
}

TEST_F(DamagedCheckpoint, FilesOfAnotherSizeAreNamed) {
  const auto size = fs::file_size(path_ / shard_name(1));
  fs::resize_file(path_ / shard_name(1), size - 1);
  EXPECT_THAT(opening(), HasSubstr("shard_00001.safetensors: truncated: expected"));
  fs::resize_file(path_ / shard_name(1), size + 1);
  EXPECT_THAT(opening(), HasSubstr("shard_00001.safetensors: too long: expected"));
}

}  // namespace
}  // namespace tessera::checkpoint
