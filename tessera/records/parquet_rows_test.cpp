#include "tessera/records/parquet_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/records/reader.h"

namespace tessera::records {
namespace {

namespace fs = std::filesystem;
using tessera::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const fs::path kFixtures = "tests/fixtures/parquet";

std::vector<std::string> rows_of(const fs::path& path) {
  RecordReader reader({.paths = {path.string()}});
  std::vector<std::string> rows;
  while (auto record = reader.next()) rows.push_back(record->value.dump());
  return rows;
}

class ParquetRowsTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = make_temporary_folder(fs::temp_directory_path() / "parquet"); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(std::string_view content) {
    const auto path = folder_ / "a.parquet";
    write_file(path, content);
    return path;
  }

  /// How reading ends: "no error", or the refusal.
  std::string end_of(std::string_view content) {
    const auto path = file(content);
    return message_of([&] { rows_of(path); });
  }

  fs::path folder_;
};

TEST_F(ParquetRowsTest, RowsAreThoseThatPyarrowReads) {
  size_t num_files = 0;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    const auto& path = entry.path();
    if (path.extension() != ".parquet" || path.filename().string().starts_with("refused")) continue;
    SCOPED_TRACE(path);
    EXPECT_EQ(rows_of(path), rows_of(fs::path(path).replace_extension(".jsonl")));
    ++num_files;
  }
  EXPECT_GE(num_files, 12U);
}

TEST_F(ParquetRowsTest, PlacesAreRowsOfTheFile) {
  const auto path = (kFixtures / "chats_zstd_v1.parquet").string();
  RecordReader reader({.paths = {path}});
  std::string last;
  while (auto record = reader.next()) last = reader.place(*record);
  EXPECT_EQ(last, path + ": row 4");  // of the second row group
}

TEST_F(ParquetRowsTest, FoldersAndPatternsHoldThem) {
  fs::copy_file(kFixtures / "chats_none_v1.parquet", folder_ / "0.parquet");
  write_file(folder_ / "1.jsonl", "{\"a\": 1}\n");
  EXPECT_EQ(rows_of(folder_).size(), 5U);
  EXPECT_EQ(rows_of(folder_ / "*.parquet").size(), 4U);
}

TEST_F(ParquetRowsTest, LargeRowsAreBroken) {
  const auto path = (kFixtures / "deltas.parquet").string();
  RecordReader reader({.paths = {path}, .skip_bad_lines = true, .max_row_bytes = 100});
  while (reader.next()) continue;
  EXPECT_EQ(reader.num_skipped(), 300);
  EXPECT_EQ(reader.first_skipped(),
            path + ": row 1: expected a row of at most 100 bytes, got a larger one");
}

TEST_F(ParquetRowsTest, TextsThatAreNoUtf8AreBroken) {
  auto content = read_file(kFixtures / "chats_none_v1.parquet");
  for (size_t at; (at = content.find("Hello")) != content.npos;) content[at] = '\xFF';
  const auto path = file(content);
  RecordReader reader({.paths = {path.string()}, .skip_bad_lines = true});
  size_t num_rows = 0;
  while (reader.next()) ++num_rows;
  EXPECT_EQ(num_rows, 3U);
  EXPECT_EQ(reader.first_skipped(),
            path.string() + ": row 1: column 'content': expected UTF-8, got other bytes");
}

TEST_F(ParquetRowsTest, WhatIsNotReadIsNamed) {
  EXPECT_THAT(message_of([] { rows_of(kFixtures / "refused_brotli.parquet"); }),
              AllOf(HasSubstr("refused_brotli.parquet: expected pages"), HasSubstr("got Brotli")));
}

TEST_F(ParquetRowsTest, OtherFilesAreRefused) {
  const auto refusal = [&](std::string_view content) {
    auto message = end_of(content);
    EXPECT_THAT(message, StartsWith((folder_ / "a.parquet").string() + ": expected "));
    return message;
  };
  const auto whole = read_file(kFixtures / "chats_none_v1.parquet");
  EXPECT_THAT(refusal(""), HasSubstr("got 0 bytes"));
  EXPECT_THAT(refusal("{\"a\": 1, \"b\": 2}"), HasSubstr("got other bytes at its end"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 1)), HasSubstr("got other bytes at its end"));
  EXPECT_THAT(refusal(whole.substr(whole.size() / 2)), HasSubstr("got"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 4) + "PARE"), HasSubstr("not encrypted"));
  EXPECT_THAT(refusal(std::string(20, '\xFF') + "PAR1"), HasSubstr("longer than the file"));
}

TEST_F(ParquetRowsTest, ChecksumsAreChecked) {
  auto content = read_file(kFixtures / "mixed.parquet");
  const auto at = content.find("Hello, world");
  ASSERT_NE(at, content.npos);
  content[at] ^= 1;
  EXPECT_THAT(end_of(content), HasSubstr("got a page with a wrong checksum"));
}

TEST_F(ParquetRowsTest, ADamagedByteEndsInRowsOrOneLine) {
  for (const char* name :
       {"chats_none_v1.parquet", "chats_snappy_v2.parquet", "old_lists.parquet"}) {
    const auto whole = read_file(kFixtures / name);
    size_t num_refused = 0;
    for (size_t at = 0; at < whole.size(); at += 5) {
      auto content = whole;
      content[at] = static_cast<char>(content[at] ^ (1 << at % 8));
      const auto end = end_of(content);
      EXPECT_EQ(end.find('\n'), end.npos) << name << " at " << at;
      num_refused += end != "no error";
    }
    EXPECT_GT(num_refused, whole.size() / 40) << name;
  }
}

}  // namespace
}  // namespace tessera::records
