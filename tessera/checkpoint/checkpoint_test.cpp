// A checkpoint as it is read: any elements of any tensor, wherever its parts lie.
#include "tessera/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>

#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/checkpoint/formats/diff.h"
#include "tessera/checkpoint/formats/inspect.h"
#include "tessera/checkpoint/formats/reshard.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/checkpoint/write_checkpoint.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
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

void flip_bit(const fs::path& path, int64_t at) {
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const char byte = static_cast<char>(stream.get() ^ 16);
  stream.seekp(at).put(byte);
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

/// The elements of a extent, run by run.
Bytes values_of(const TensorSource& source, const TensorExtent& extent) {
  Bytes values(static_cast<size_t>(extent.num_bytes()));
  const int64_t element = dtype_bytes(extent.info.dtype);
  extent.stripe.for_each_stretch(
      extent.begin, extent.length, [&](int64_t position, int64_t k, int64_t n) {
        source.read(extent.name, position,
                    std::span(values).subspan(static_cast<size_t>((k - extent.begin) * element),
                                              static_cast<size_t>(n * element)));
      });
  return values;
}

using Ranks = std::vector<std::vector<TensorExtent>>;

/// A complete checkpoint of a file for each rank's extents.
fs::path write_extents(const TensorSource& source, const Ranks& ranks, const fs::path& directory) {
  const auto partial = begin_checkpoint(directory, 3);
  Index index{.step = 3};
  for (size_t file = 0; file < ranks.size(); ++file) {
    const ShardLayout layout(ranks[file]);
    std::string bytes(static_cast<size_t>(layout.num_bytes()), '\0');
    layout.fill(0, std::as_writable_bytes(std::span(bytes)),
                [&](size_t extent, int64_t begin, std::span<std::byte> destination) {
                  const auto values = values_of(source, layout.extents()[extent]);
                  std::copy_n(values.begin() + begin, destination.size(), destination.begin());
                });
    write_file(partial / shard_name(file), bytes);
    index.files.push_back({shard_name(file), layout.num_bytes(), {}});
    append_checksums(std::as_bytes(std::span(bytes)), index.files.back().checksums);
    layout.add_to(index, file);
  }
  check_complete(directory, index);
  return finish_checkpoint(partial, index, std::nullopt);
}

/// Pieces of a tensor lie in any order over the files, as ranks write them.
TEST(Checkpoint, ReadsPiecesInAnyOrder) {
  const TemporaryFolder folder;
  MemorySource source;
  source.add_counting("a", {10});
  const auto info = source.info("a");
  const Checkpoint found(write_extents(
      source, {{{{8, 2}, "a", info}, {{0, 1}, "a", info}}, {{{1, 7}, "a", info}}}, folder.path()));
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

/// Tensors of three dims over ranks: cut along one of these, uneven, and then, flattened, once
/// more.
struct Cut {
  std::string name;
  size_t dim = 0;
  int64_t parts = 1, flat_parts = 1;
};

std::ostream& operator<<(std::ostream& out, const Cut& cut) { return out << cut.name; }

const Cut kCuts[] = {{"Whole"},
                     {"Rows", 0, 3},
                     {"Flat", 0, 1, 5},
                     {"Columns", 1, 2},
                     {"ColumnsFlat", 1, 4, 3},
                     {"Inner", 2, 3},
                     {"InnerFlat", 2, 2, 2}};

/// Where part `which` of `parts` begins: later parts are larger.
int64_t cut_at(int64_t count, int64_t which, int64_t parts) {
  return count * (which * (which + 1)) / (parts * (parts + 1));
}

Ranks cut_over_ranks(const TensorSource& source, const Cut& cut) {
  Ranks ranks;
  for (int64_t part = 0; part < cut.parts; ++part) {
    for (int64_t flat = 0; flat < cut.flat_parts; ++flat) {
      auto& extents = ranks.emplace_back();
      for (const auto& [name, info] : source.tensors()) {
        const int64_t size = info.shape[cut.dim];
        const auto behind = info.shape.begin() + static_cast<std::ptrdiff_t>(cut.dim) + 1;
        const int64_t inner =
            std::accumulate(behind, info.shape.end(), int64_t{1}, std::multiplies<>());
        const int64_t from = cut_at(size, part, cut.parts), to = cut_at(size, part + 1, cut.parts);
        const Stripe stripe{from * inner, (to - from) * inner, size * inner};
        const int64_t count = stripe.taken(info.num_elements());
        const int64_t begin = cut_at(count, flat, cut.flat_parts);
        extents.push_back(
            {{begin, cut_at(count, flat + 1, cut.flat_parts) - begin, stripe}, name, info});
      }
    }
  }
  return ranks;
}

/// A few blocks, and one that lies in a block with others.
MemorySource source_to_cut() {
  MemorySource source;
  source.add("large", DType::f32, {23, 31, 997}, counting<uint32_t>(23 * 31 * 997));
  source.add("small", DType::bf16, {5, 7, 6}, counting<uint16_t>(5 * 7 * 6));
  return source;
}

class StripedCheckpoint : public ::testing::TestWithParam<Cut> {
 protected:
  const MemorySource source_ = source_to_cut();
  const TemporaryFolder folder_;
  const Checkpoint stored_{
      write_extents(source_, cut_over_ranks(source_, GetParam()), folder_.path())};
};

TEST_P(StripedCheckpoint, IsReadAsAnyOther) {
  for (const auto& cut : kCuts) {
    std::vector<TensorExtent> extents;
    for (const auto& rank : cut_over_ranks(source_, cut)) {
      extents.insert(extents.end(), rank.begin(), rank.end());
    }
    std::vector<Bytes> together;
    std::vector<Checkpoint::Request> requests;
    for (const auto& extent : extents) {
      Bytes alone(static_cast<size_t>(extent.num_bytes()));
      together.push_back(alone);
      requests.push_back({extent.name, extent.begin, together.back(), extent.stripe});
      const Checkpoint::Request request{extent.name, extent.begin, alone, extent.stripe};
      stored_.read_all({&request, 1});
      EXPECT_TRUE(alone == values_of(source_, extent)) << cut.name << ": " << extent.name;
    }
    stored_.read_all(requests);
    for (size_t i = 0; i < extents.size(); ++i) {
      EXPECT_TRUE(together[i] == values_of(source_, extents[i])) << cut.name << " together: " << i;
    }
  }
}

TEST_P(StripedCheckpoint, IsReadInAnyPart) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100; ++i) {
    const std::string name = i % 2 == 0 ? "small" : "large";
    const auto& info = source_.info(name);
    const auto element = dtype_bytes(info.dtype);
    // A part of the whole tensor, or of a stripe that nobody wrote.
    const int64_t stride = i % 3 == 0 ? 0 : info.shape[2] * (i % 3 == 1 ? 1 : info.shape[1]);
    const auto number = [&](int64_t most) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
    };
    const int64_t offset = stride == 0 ? 0 : number(stride - 1);
    const Stripe stripe{offset, stride == 0 ? 0 : 1 + number(stride - offset - 1), stride};
    const int64_t count = stripe.taken(info.num_elements()), begin = number(count);
    const TensorExtent extent{{begin, number(count - begin), stripe}, name, info};
    Bytes read(static_cast<size_t>(extent.length * element));
    const Checkpoint::Request request{name, begin, read, stripe};
    stored_.read_all({&request, 1});
    ASSERT_TRUE(read == values_of(source_, extent)) << name << " " << i;
  }
}

TEST_P(StripedCheckpoint, IsWhatTheToolsTakeItFor) {
  expect_equal(stored_, source_);
  stored_.verify();
  EXPECT_EQ(diff(stored_, source_, 0).num_equal, 2);

  const auto to = folder_.path();
  reshard({.source = stored_.path(), .destination = to / "three", .num_files = 3});
  const Checkpoint three(to / "three");
  EXPECT_EQ(three.index().files.size(), 3u);
  expect_equal(three, source_);
  reshard({.source = stored_.path(), .destination = to / "merged.safetensors"});
  expect_equal(SafetensorsFile(to / "merged.safetensors"), source_);
  convert({.from = {.source = stored_.path()}, .to = Target::tessera, .destination = to / "again"});
  expect_equal(Checkpoint(to / "again"), source_);
}

INSTANTIATE_TEST_SUITE_P(Cuts, StripedCheckpoint, ::testing::ValuesIn(kCuts),
                         [](const auto& info) { return info.param.name; });

TEST(StripedCheckpoint, SaysInInspectWhereItsStripesLie) {
  const TemporaryFolder folder;
  MemorySource source;
  source.add_counting("a", {2, 3});
  const auto info = source.info("a");
  const auto path = write_extents(
      source, {{{{0, 2, {0, 1, 3}}, "a", info}}, {{{0, 4, {1, 2, 3}}, "a", info}}}, folder.path());
  const auto about = inspect(open_with_format(path), /*with_tensors=*/true);
  const auto& ranges = about["tensors"]["a"]["ranges"];
  EXPECT_EQ(ranges[1]["stripe"].get<nlohmann::json>(),
            (nlohmann::json{{"offset", 1}, {"run", 2}, {"stride", 3}}));
  EXPECT_EQ(ranges[1]["begin"], 0);
  EXPECT_EQ(ranges[1]["length"], 4);
}

/// Columns of a matrix whose rows are longer than a block.
class LongRows : public ::testing::Test {
 protected:
  static constexpr int64_t kColumns = 3 * kBlockBytes;

  void SetUp() override {
    source_.add("a", DType::u8, {4, kColumns}, counting<uint8_t>(4 * kColumns));
  }
  TensorExtent columns(int64_t from, int64_t to) const {
    return {{0, 4 * (to - from), {from, to - from, kColumns}}, "a", source_.info("a")};
  }
  /// "(accepted)" if the right values were read.
  std::string reading(const Checkpoint& stored, const TensorExtent& extent) const {
    Bytes read(static_cast<size_t>(extent.num_bytes()));
    const Checkpoint::Request request{extent.name, extent.begin, read, extent.stripe};
    const auto line = refusal([&] { stored.read_all({&request, 1}); });
    return line == "(accepted)" && read != values_of(source_, extent) ? "(other values)" : line;
  }

  MemorySource source_;
  TemporaryFolder folder_;
};

TEST_F(LongRows, AreReadInTheBlocksThatAStripeTouches) {
  const auto whole = columns(0, kColumns);
  const Checkpoint stored(write_extents(source_, {{whole}}, folder_.path()));
  flip_bit(stored.path() / shard_name(0), 2 * kBlockBytes + kBlockBytes / 2);
  EXPECT_EQ(reading(stored, columns(0, kBlockBytes)), "(accepted)");
  EXPECT_THAT(reading(stored, columns(kBlockBytes, 2 * kBlockBytes)),
              HasSubstr("damaged: bytes 2097152 to 3145727 "));
  EXPECT_THAT(reading(stored, whole), HasSubstr("damaged: bytes 2097152 to 3145727 "));
}

TEST_F(LongRows, AreReadFromTheFilesThatHoldAStripe) {
  constexpr int64_t kCut = 1'234'567;
  const auto left = columns(0, kCut), right = columns(kCut, kColumns);
  const Checkpoint stored(write_extents(source_, {{left}, {right}}, folder_.path()));
  flip_bit(stored.path() / shard_name(1), 2 * kBlockBytes);
  EXPECT_EQ(reading(stored, left), "(accepted)");
  EXPECT_EQ(reading(stored, columns(17, kCut - 17)), "(accepted)");
  EXPECT_THAT(reading(stored, right), HasSubstr("shard_00001.safetensors: damaged"));
  EXPECT_THAT(refusal([&] { stored.verify(); }), HasSubstr("shard_00001.safetensors: damaged"));
  fs::remove(stored.path() / shard_name(1));
  EXPECT_EQ(reading(stored, left), "(accepted)");
  // Columns of every other row: none is in the missing file, though rows in between are.
  const TensorExtent rows{{0, 2 * kCut, {0, kCut, 2 * kColumns}}, "a", source_.info("a")};
  EXPECT_EQ(reading(stored, rows), "(accepted)");
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
  void flip(const std::string& file, int64_t at) const { flip_bit(path_ / file, at); }

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
