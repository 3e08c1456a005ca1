// Pieces of tensors as a safetensors file.
#include "tessera/checkpoint/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/block_file.h"
#include "tessera/checkpoint/memory_source.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using data::testing::refusal;
using tessera::testing::TemporaryFolder;

const std::vector<TensorExtent> kExtents = {
    {{0, 5}, "bytes", {DType::i8, {5}}},
    {{1, 4}, "half", {DType::bf16, {3, 2}}},
    {{0, 0}, "none", {DType::f32, {0, 4}}},
    {{0, 6}, "whole", {DType::f32, {2, 3}}},
    {{90, 10}, "part", {DType::f32, {100}}},
    {{0, 1}, "scalar", {DType::f64, {}}},
    {{3, 0}, "nothing", {DType::f32, {8}}},
    {{0, 3996}, "large", {DType::i64, {4, 999}}},
    // Columns 1 to 3 of 5; rows 2 and 3; a part of one row of columns; all columns.
    {{2, 7, {1, 3, 5}}, "columns", {DType::f32, {4, 5}}},
    {{1, 9, {10, 10, 20}}, "rows", {DType::f32, {4, 5}}},
    {{4, 2, {1, 3, 5}}, "row", {DType::f32, {4, 5}}},
    {{0, 20, {0, 5, 5}}, "all", {DType::f32, {4, 5}}}};

/// Extent i's byte k is i * 16 + k.
void copy(size_t extent, int64_t begin, std::span<std::byte> destination) {
  for (auto& byte : destination) byte = static_cast<std::byte>(int64_t(extent) * 16 + begin++);
}

std::string file_of(const ShardLayout& layout) {
  std::string file(static_cast<size_t>(layout.num_bytes()), '\xEE');
  layout.fill(0, std::as_writable_bytes(std::span(file)), copy);
  return file;
}

TEST(Shard, IsASafetensorsFileWithPartsUnderTheirElements) {
  const ShardLayout layout(kExtents);
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x.safetensors", file_of(layout)));
  EXPECT_EQ(file.tensors(), (TensorInfos{{"bytes", {DType::i8, {5}}},
                                         {"half[1:5]", {DType::bf16, {4}}},
                                         {"none", {DType::f32, {0, 4}}},
                                         {"whole", {DType::f32, {2, 3}}},
                                         {"part[90:100]", {DType::f32, {10}}},
                                         {"scalar", {DType::f64, {}}},
                                         {"nothing[3:3]", {DType::f32, {0}}},
                                         {"large", {DType::i64, {4, 999}}},
                                         {"columns[2:9 of 1+3/5]", {DType::f32, {7}}},
                                         {"rows[11:20]", {DType::f32, {9}}},
                                         {"row[7:9]", {DType::f32, {2}}},
                                         {"all", {DType::f32, {4, 5}}}}));
  EXPECT_EQ(layout.offset(0), kPageBytes);
  for (size_t i = 0; i < layout.extents().size(); ++i) {
    const auto& extent = layout.extents()[i];
    EXPECT_EQ(layout.offset(i) % dtype_bytes(extent.info.dtype), 0) << extent.name;
    if (extent.length != extent.info.num_elements()) continue;
    EXPECT_EQ(file.offset(extent.name), layout.offset(i));
    testing::Bytes expected(static_cast<size_t>(extent.num_bytes()));
    copy(i, 0, expected);
    EXPECT_EQ(testing::read_all(file, extent.name), expected) << extent.name;
  }
}

TEST(Shard, AnyPartOfTheFileIsThatOfTheWhole) {
  const ShardLayout layout(kExtents);
  const auto whole = file_of(layout);
  for (const int64_t size : {1, 7, 64, 4095, 4096, 5000}) {
    std::string joined;
    for (int64_t offset = 0; offset < layout.num_bytes(); offset += size) {
      std::string part(static_cast<size_t>(std::min(size, layout.num_bytes() - offset)), '\xEE');
      layout.fill(offset, std::as_writable_bytes(std::span(part)), copy);
      joined += part;
    }
    EXPECT_TRUE(joined == whole) << size;
  }
}

TEST(Shard, EntersTheIndexAsRanges) {
  const ShardLayout first({{{0, 4}, "a", {DType::f32, {10}}}, {{}, "none", {DType::f32, {0}}}});
  const ShardLayout second({{{4, 6}, "a", {DType::f32, {10}}}});
  Index index;
  second.add_to(index, 1);
  first.add_to(index, 0);
  check_complete("c", index);
  EXPECT_EQ(
      index.tensors.at("a").ranges,
      (std::vector<StoredExtent>{{{0, 4}, 0, first.offset(0)}, {{4, 6}, 1, second.offset(0)}}));
  EXPECT_TRUE(index.tensors.at("none").ranges.empty());
}

TEST(Shard, EntersTheIndexAsRangesOfStripes) {
  const TensorInfo info{DType::f32, {4, 5}};
  const Stripe left{0, 2, 5}, right{2, 3, 5};
  const ShardLayout first({{{3, 5, left}, "a", info}, {{0, 3, left}, "a", info}});
  const ShardLayout second({{{0, 3, right}, "a", info}, {{3, 9, right}, "a", info}});
  Index index;
  second.add_to(index, 1);
  first.add_to(index, 0);
  check_complete("c", index);
  EXPECT_EQ(index.tensors.at("a").ranges,
            (std::vector<StoredExtent>{{{0, 3, left}, 0, first.offset(1)},
                                       {{2, 3}, 1, second.offset(0)},  // one row needs no stripe
                                       {{3, 5, left}, 0, first.offset(0)},
                                       {{3, 9, right}, 1, second.offset(1)}}));
  auto& ranges = index.tensors.at("a").ranges;
  ranges.pop_back();
  EXPECT_EQ(refusal([&] { check_complete("c", index); }),
            "c: tensor 'a': expected each of its 20 elements once, got no element 7");
}

TEST(Shard, AHoleOrAnOverlapIsRefused) {
  const auto checking = [](std::vector<StoredExtent> ranges) {
    Index index;
    index.tensors["a"] = {{DType::f32, {10}}, std::move(ranges)};
    return refusal([&] { check_complete("c", index); });
  };
  EXPECT_EQ(checking({{{4, 6}}, {{0, 4}}}), "(accepted)");
  const std::string start = "c: tensor 'a': expected each of its 10 elements once, got ";
  EXPECT_EQ(checking({}), start + "no element 0");
  EXPECT_EQ(checking({{{1, 9}}}), start + "no element 0");
  EXPECT_EQ(checking({{{0, 4}}, {{5, 5}}}), start + "no element 4");
  EXPECT_EQ(checking({{{0, 4}}, {{3, 7}}}), start + "element 3 twice");
  EXPECT_EQ(checking({{{0, 4}}, {{0, 4}}, {{4, 6}}}), start + "element 0 twice");
  EXPECT_EQ(checking({{{0, 4}}, {{4, 5}}}), start + "no element 9");
  EXPECT_EQ(checking({{{0, 4}}, {{4, 7}}}), start + "7 elements from 4 on, of 10");
}

TEST(Shard, NamesOfFiles) {
  EXPECT_EQ(shard_name(12), "shard_00012.safetensors");
  EXPECT_TRUE(is_shard_name(shard_name(123456)));
  EXPECT_FALSE(is_shard_name("tokenizer.json"));
  EXPECT_FALSE(is_shard_name("model.safetensors"));
}

}  // namespace
}  // namespace tessera::checkpoint
