// Parts of tensors, read and put together, against plain loops.
#include "tessera/checkpoint/source_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/memory_source.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::message_of;
using testing::Bytes;
using testing::MemorySource;

/// Tensors in memory, which counts how often and how much is read.
class CountingSource : public MemorySource {
 public:
  mutable int64_t reads = 0, bytes = 0;

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    ++reads, bytes += std::ssize(destination);
    MemorySource::read_part(name, info, begin, destination);
  }
};

std::vector<float> floats(const TensorSource& source, const std::string& name, int64_t begin,
                          int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  source.read(name, begin, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<float> floats(const TensorSource& source, const std::string& name) {
  return floats(source, name, 0, source.info(name).num_elements());
}

/// What a part holds, by its definition.
std::vector<float> values_of(const Strided& part, const std::vector<float>& whole) {
  const bool is_matrix = part.shape.size() == 2;
  std::vector<float> values;
  for (int64_t i = 0; i < part.shape[0]; ++i) {
    for (int64_t j = 0; j < (is_matrix ? part.shape[1] : 1); ++j) {
      const int64_t at = part.offset + i * part.strides[0] + (is_matrix ? j * part.strides[1] : 0);
      values.push_back(whole[static_cast<size_t>(at)]);
    }
  }
  return values;
}

/// Reads all of a tensor, then parts of it from any element to any other.
void expect_values(const TensorSource& source, const std::string& name,
                   const std::vector<float>& expected, std::mt19937& random) {
  ASSERT_EQ(source.info(name).num_elements(), std::ssize(expected));
  EXPECT_EQ(floats(source, name), expected);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  for (int i = 0; i < 20; ++i) {
    const int64_t begin = below(std::ssize(expected));
    const int64_t count = 1 + below(std::ssize(expected) - begin);
    EXPECT_EQ(floats(source, name, begin, count),
              std::vector(expected.begin() + begin, expected.begin() + begin + count))
        << name << " from " << begin << ", " << count;
  }
}

/// Every other column of the second of three matrices [R, 2 C], turned; and the like.
std::map<std::string, Strided> parts_of(int64_t rows, int64_t columns) {
  const std::vector<int64_t> of{3, rows, 2 * columns};
  const int64_t second = rows * 2 * columns;
  return {{"even, turned", {of, second, {columns, rows}, {2, 2 * columns}}},
          {"odd, turned", {of, second + 1, {columns, rows}, {2, 2 * columns}}},
          {"even rows", {of, second, {(rows + 1) / 2, columns}, {4 * columns, 1}}},
          {"left", {of, second, {rows, columns}, {2 * columns, 1}}},
          {"even", {of, second, {rows, columns}, {2 * columns, 2}}},
          {"whole", {of, second, {rows, 2 * columns}, {2 * columns, 1}}},
          {"whole, turned", {of, second, {2 * columns, rows}, {1, 2 * columns}}},
          {"vector", {of, 5, {columns}, {3}}},
          {"one column", {of, second, {rows}, {2 * columns}}}};
}

TEST(SourceView, PartsAreWhatALoopFinds) {
  std::mt19937 random(3);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 4}, {5, 1}, {7, 3}, {40, 33}, {65, 90}, {3, 700}, {700, 3}}) {
    MemorySource source;
    const std::vector<int64_t> of{3, rows, 2 * columns};
    source.add_counting("all", of);
    const auto whole = floats(source, "all");
    SourceView view("view");
    for (const auto& [name, part] : parts_of(rows, columns)) {
      if (name == "vector" && 5 + 3 * (columns - 1) >= std::ssize(whole)) continue;
      view.add_part(name, source, "all", part);
      EXPECT_EQ(view.info(name).shape, part.shape);
      expect_values(view, name, values_of(part, whole), random);
    }
  }
}

TEST(SourceView, PartsPutTogetherAreWhatTheyWereTakenFrom) {
  std::mt19937 random(4);
  for (const auto& [rows, columns] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 3}, {40, 33}, {65, 90}, {2, 600}}) {
    constexpr int64_t kExperts = 3;
    const std::vector<int64_t> of{kExperts, rows, 2 * columns};
    MemorySource source;
    source.add_counting("all", of);
    SourceView apart("apart"), again("again");
    for (int64_t e = 0; e < kExperts; ++e) {
      for (int64_t odd = 0; odd < 2; ++odd) {
        const Strided part{of, e * rows * 2 * columns + odd, {columns, rows}, {2, 2 * columns}};
        const auto name = std::to_string(e) + (odd == 0 ? "even" : "odd");
        apart.add_part(name, source, "all", part);
        again.put_part("all", apart, name, part);
      }
    }
    EXPECT_EQ(again.info("all"), source.info("all"));
    expect_values(again, "all", floats(source, "all"), random);
  }
}

TEST(SourceView, PartsOfEveryWidthAreConverted) {
  MemorySource source;
  const std::vector<int64_t> of{50, 42};
  std::vector<float> whole(50 * 42);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i % 128) - 60;
  const Strided part{of, 1, {21, 50}, {2, 42}};
  const auto expected = values_of(part, whole);
  SourceView view("view");
  std::mt19937 random(5);
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const std::string name(dtype_name(dtype));
    Bytes bytes(whole.size() * static_cast<size_t>(dtype_bytes(dtype)));
    convert_values(std::as_bytes(std::span(whole)), DType::f32, bytes, dtype);
    source.add(name, dtype, of, bytes);
    view.add_part(name, source, name, part, DType::f32);
    EXPECT_EQ(view.info(name).dtype, DType::f32);
    expect_values(view, name, expected, random);
  }
  // Of one byte each, which nothing converts.
  std::vector<uint8_t> numbers(whole.size());
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint8_t>(i % 251);
  source.add("bytes", DType::u8, of, numbers);
  view.add_part("bytes", source, "bytes", part, DType::f32);
  EXPECT_EQ(view.info("bytes").dtype, DType::u8);
  const auto found = testing::read_all(view, "bytes");
  for (int64_t i = 0; i < 21; ++i) {
    for (int64_t j = 0; j < 50; ++j) {
      EXPECT_EQ(static_cast<uint8_t>(found[static_cast<size_t>(i * 50 + j)]),
                numbers[static_cast<size_t>(1 + 2 * i + 42 * j)]);
    }
  }
}

TEST(SourceView, RowsAreReadWithoutADetour) {
  CountingSource source;
  source.add_counting("all", {100, 30});
  SourceView view("view");
  view.add_rows("rows", source, "all", {.first_row = 10, .rows = 50});
  floats(view, "rows", 7, 900);
  EXPECT_EQ(source.reads, 1);
  EXPECT_EQ(source.bytes, 900 * 4);
}

TEST(SourceView, WhatStandsTurnedIsReadInFewParts) {
  CountingSource source;
  constexpr int64_t kRows = 300, kColumns = 1000;  // of two matrices whose columns alternate
  source.add_counting("all", {kRows, 2 * kColumns});
  SourceView view("view");
  view.add_part("even", source, "all",
                {{kRows, 2 * kColumns}, 0, {kColumns, kRows}, {2, 2 * kColumns}});
  floats(view, "even");
  EXPECT_LE(source.reads, 3) << "rows that are wanted whole are read many at a time";
  EXPECT_LE(source.bytes, 4 * kRows * 2 * kColumns);
  source.reads = source.bytes = 0;
  floats(view, "even", 100 * kRows, 100 * kRows);
  EXPECT_LE(source.reads, kRows) << "a tenth of them: a read for each";
  EXPECT_LE(source.bytes, 4 * 200 * kRows);
  // Row by row, as matrices are that ranks share out by their columns: it is kept.
  source.reads = source.bytes = 0;
  for (int64_t row = 0; row < kColumns; ++row) floats(view, "even", row * kRows, kRows / 2);
  EXPECT_LE(source.reads, 3);
  EXPECT_LE(source.bytes, 4 * kRows * 2 * kColumns);
}

TEST(SourceView, WhatIsPutTogetherReadsEachPartOnce) {
  CountingSource source;
  constexpr int64_t kRows = 50, kColumns = 60;
  SourceView view("view");
  for (int64_t e = 0; e < 4; ++e) {
    for (int64_t odd = 0; odd < 2; ++odd) {
      const auto name = std::to_string(e) + std::to_string(odd);
      source.add_counting(name, {kColumns, kRows});
      view.put_part("all", source, name,
                    {{4, kRows, 2 * kColumns},
                     e * kRows * 2 * kColumns + odd,
                     {kColumns, kRows},
                     {2, 2 * kColumns}});
    }
  }
  const int64_t elements = view.info("all").num_elements();
  for (int64_t begin = 0; begin < elements; begin += 100) {
    floats(view, "all", begin, std::min<int64_t>(100, elements - begin));
  }
  EXPECT_EQ(source.bytes, 4 * elements);
}

TEST(SourceView, RefusesOtherShapesInOneLine) {
  MemorySource source;
  source.add_counting("all", {4, 6});
  source.add_counting("matrix", {3, 4});
  source.add("halves", DType::f16, {3, 4}, std::vector<uint16_t>(12));
  SourceView view("view");
  const Strided part{{4, 8}, 0, {4, 4}, {2, 8}};
  EXPECT_EQ(message_of([&] { view.add_part("ours", source, "all", part); }),
            "memory: 'all': expected shape [4, 8], which holds 'ours', got [4, 6]");
  EXPECT_EQ(message_of([&] { view.put_part("all", source, "matrix", part); }),
            "memory: 'matrix': expected shape [4, 4], as a part of 'all', got [3, 4]");
  view.put_part("all", source, "matrix", {{4, 6}, 0, {3, 4}, {2, 6}});
  EXPECT_EQ(message_of([&] {
              view.put_part("all", source, "halves", {{4, 6}, 1, {3, 4}, {2, 6}});
            }),
            "memory: 'halves': expected F32, as the other parts of 'all', got F16");
  EXPECT_EQ(message_of([&] { view.add_rows("rows", source, "all", {.first_row = 2, .rows = 3}); }),
            "memory: 'all': expected at least 5 rows, got shape [4, 6]");
}

}  // namespace
}  // namespace tessera::checkpoint
