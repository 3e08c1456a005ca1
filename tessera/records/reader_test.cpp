#include "tessera/records/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"

namespace tessera::records {
namespace {

namespace fs = std::filesystem;
using tessera::testing::message_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = make_temporary_folder(fs::temp_directory_path() / "records"); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, std::string_view content) {
    const auto path = folder_ / name;
    make_folder(path.parent_path());
    write_file(path, content);
    return path.string();
  }

  static std::vector<std::string> rows_with(RecordOptions options) {
    RecordReader reader(std::move(options));
    std::vector<std::string> all;
    while (auto record = reader.next()) all.push_back(record->value.dump());
    return all;
  }
  static std::vector<std::string> rows(const std::string& path) {
    return rows_with(RecordOptions{.paths = {path}});
  }
  static std::string refusal(const std::string& path) {
    return message_of([&] { rows(path); });
  }
  /// What is told of a file of this name and content, behind its path.
  std::string refusal(const std::string& name, std::string_view content) {
    const auto path = file(name, content);
    const auto message = refusal(path);
    EXPECT_THAT(message, StartsWith(path));
    return message.substr(path.size());
  }

  fs::path folder_;
};

std::string gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string packed(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

TEST_F(ReaderTest, JsonLinesInTheirOrderWithTheirPlaces) {
  const auto path = file(
      "a.jsonl",
      "\xEF\xBB\xBF{\"b\": 1, \"a\": [true, null]}\n\n \r\n{\"c\": \"\xC3\xA4\"}\r\n{\"d\":-2.5}");
  EXPECT_THAT(rows(path),
              ElementsAre(R"({"b":1,"a":[true,null]})", "{\"c\":\"\xC3\xA4\"}", R"({"d":-2.5})"));
  RecordReader reader({.paths = {path}});
  EXPECT_EQ(reader.place(*reader.next()), path + ":1");
  EXPECT_EQ(reader.place(*reader.next()), path + ":4");
}

TEST_F(ReaderTest, BrokenLinesAreNamedByLineAndColumn) {
  const std::string good = "{\"a\": 1}\n";
  const auto told = [&](std::string_view line) {
    return refusal("a.jsonl", good + std::string(line) + "\n" + good);
  };
  EXPECT_THAT(told(R"({"a": tru})"), StartsWith(":2:10: expected JSON, got '}'"));
  EXPECT_THAT(told("{\"\xC3\xA4\": tru}"), StartsWith(":2:10: "));  // characters, not bytes
  EXPECT_THAT(told(R"({"a": "x)"), HasSubstr("closing quote"));
  EXPECT_THAT(told(R"({"a": 1)"), StartsWith(":2:8: expected more of the JSON"));
  EXPECT_THAT(told(R"({"a": NaN})"), StartsWith(":2:7: expected JSON, got 'N'"));
  EXPECT_THAT(told(R"({"a": -Infinity})"), StartsWith(":2:8: expected JSON, got 'I'"));
  EXPECT_THAT(told(R"({"a": 1e999})"), HasSubstr("too large"));
  EXPECT_THAT(told(R"({"a": 18446744073709551616})"),
              HasSubstr("whole numbers of at most 64 bits, got 18446744073709551616"));
  EXPECT_THAT(told(R"({"a": "\ud800"})"), HasSubstr("half of one"));
  EXPECT_THAT(told("{\"a\": \"\xFF\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(told("{\"a\": \"\xED\xA0\x80\"}"), HasSubstr("UTF-8"));
  EXPECT_THAT(told("{\"a\": \"\t\"}"), HasSubstr("control characters"));
  EXPECT_THAT(told(R"({"a": "\x"})"), HasSubstr("escapes"));
  EXPECT_THAT(told(std::string("{\"a\": 1}\0{}", 11)),
              StartsWith(":2:9: expected JSON, got a NUL"));
  EXPECT_THAT(told(R"({"a": 1, "b": 2, "a": 3})"), HasSubstr("the key 'a' stands twice"));
  EXPECT_THAT(told("[1]"), HasSubstr("expected an object {..} for each row, got an array"));
  EXPECT_THAT(told("{} {}"), HasSubstr("expected JSON, got '{'"));
  EXPECT_THAT(told("{\"a\": " + std::string(100000, '[')), HasSubstr("64 levels"));
}

TEST_F(ReaderTest, ColumnOfABadCharacterIsItsOwn) {
  EXPECT_THAT(refusal("a.jsonl", "{\"a\": }\n"), StartsWith(":1:7: "));
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1},\n {\"\xC3\xA4\": }]"), StartsWith(":2:8: "));
}

TEST_F(ReaderTest, BadLinesAreSkippedAndCounted) {
  const auto path =
      file("a.jsonl", "{\"a\": 1}\nnonsense\n" + std::string(500, 'x') + "\n{\"a\": 2}\n7\n");
  RecordReader reader({.paths = {path}, .skip_bad_lines = true, .max_row_bytes = 100});
  EXPECT_EQ(reader.next()->line, 1);
  EXPECT_EQ(reader.next()->line, 4);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(reader.num_skipped(), 3);
  EXPECT_THAT(reader.first_skipped(), StartsWith(path + ":2:2: "));
}

TEST_F(ReaderTest, LongLinesAreRefusedWithoutTakingThemAll) {
  const auto path = file("a.jsonl", "{\"a\": \"" + std::string(1000000, 'x') + "\"}\n{}\n");
  EXPECT_THAT(message_of([&] { rows_with({.paths = {path}, .max_row_bytes = 1000}); }),
              EndsWith(":1:1: expected a row of at most 1000 bytes, got a longer one"));
  EXPECT_THAT(rows_with({.paths = {path}, .skip_bad_lines = true, .max_row_bytes = 1000}),
              ElementsAre("{}"));
}

TEST_F(ReaderTest, JsonFiles) {
  EXPECT_THAT(rows(file("a.json", " [ {\"a\": \"]\\\"}\"},\n{\"b\": [{}]} ] \n")),
              ElementsAre(R"({"a":"]\"}"})", R"({"b":[{}]})"));
  EXPECT_THAT(
      rows(file(
          "b.json",
          "{\"version\": [\"1\"], \"data\": [\n{\"a\": 1}, {\"a\": 2}], \"n\": {\"x\": [2]}}")),
      ElementsAre(R"({"a":1})", R"({"a":2})"));
  EXPECT_THAT(rows(file("c.json", "{\"a\": 1}\n{\"a\": 2}\n")),
              ElementsAre(R"({"a":1})", R"({"a":2})"));
  EXPECT_THAT(rows(file("d.json", "{\"messages\": [{\"role\": 1}]}\r\n\n{\"messages\": []}")),
              ElementsAre(R"({"messages":[{"role":1}]})", R"({"messages":[]})"));
  RecordReader reader({.paths = {(folder_ / "b.json").string()}});
  EXPECT_EQ(reader.next()->line, 2);
}

TEST_F(ReaderTest, BrokenJsonFiles) {
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1} {\"a\": 2}]"),
              StartsWith(":1:11: expected , or ] behind a row, got '{'"));
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1},]"), StartsWith(":1:11: expected a value, got ']'"));
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1},\n{\"a\":"),
              StartsWith(":2:1: expected the end of what begins here"));
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1}"), HasSubstr("the end of the file"));
  EXPECT_THAT(refusal("a.json", "[{\"a\": 1}] x"),
              StartsWith(":1:12: expected the end of the file, got 'x'"));
  EXPECT_THAT(refusal("a.json", "[1]"), StartsWith(":1:2: expected an object"));
  EXPECT_THAT(refusal("a.json", "7"), HasSubstr("a list of objects, or an object that holds one"));
  EXPECT_THAT(refusal("a.json", "{\"a\": 1}"), HasSubstr("got an object without"));
  EXPECT_THAT(refusal("a.json", "{\"a\": [{}], \"b\": [{}]}"),
              HasSubstr("expected one list of objects, got one more at line 1, 'b'"));
  EXPECT_THAT(refusal("a.json", "{\"a\": tru, \"b\": [{}]}"), StartsWith(":1:10: expected JSON"));
  EXPECT_THAT(refusal("a.json", "{\"a\" 1}"), HasSubstr("expected : behind a key"));
  EXPECT_THAT(refusal("a.json", "[" + std::string(100000, '[')), HasSubstr("expected the end"));
  EXPECT_THAT(refusal("a.jsonl", "[\n{\"a\": 1}\n]"), HasSubstr("name a file that is one .json"));
  const auto path = file("b.json", "[{\"a\": 1}, {\"a\": tru}, 7, {\"a\": 2}]");
  EXPECT_THAT(rows_with({.paths = {path}, .skip_bad_lines = true}),
              ElementsAre(R"({"a":1})", R"({"a":2})"));
}

TEST_F(ReaderTest, Csv) {
  EXPECT_THAT(
      rows(file("a.csv",
                "\xEF\xBB\xBFid,text\r\n1,\"a, \"\"b\"\"\r\nc\"\r\n\r\n2,5\" pipe\r\n\"\",")),
      ElementsAre(R"({"id":"1","text":"a, \"b\"\r\nc"})", R"({"id":"2","text":"5\" pipe"})",
                  R"({"id":"","text":""})"));
  EXPECT_THAT(rows(file("a.tsv", "a\tb\n1,5\t\"x\ty\"\n")),
              ElementsAre(R"({"a":"1,5","b":"x\ty"})"));
  EXPECT_THAT(refusal("b.csv", "a,b\n1,2\n1\n"),
              StartsWith(":3:1: expected 2 fields as in the first line, got 1"));
  EXPECT_THAT(refusal("b.csv", "a,b\n1,\"2"), StartsWith(":2:3: expected a closing quote"));
  EXPECT_THAT(refusal("b.csv", "a,b\n1,\"2\"\""), StartsWith(":2:3: expected a closing quote"));
  EXPECT_THAT(refusal("b.csv", "a,b\n1,\""), StartsWith(":2:3: expected a closing quote"));
  EXPECT_THAT(refusal("b.csv", "a,b\n\"1\"x,2\n"), StartsWith(":2:4: expected the field's end"));
  EXPECT_THAT(refusal("b.csv", "a,b\n1,\xFF\n"), StartsWith(":2:3: expected UTF-8"));
  EXPECT_THAT(refusal("b.csv", std::string("a,b\n1,\0\n", 8)), HasSubstr("NUL"));
  EXPECT_THAT(refusal("b.csv", "a,b,a\n1,2,3\n"), HasSubstr("'a' twice"));
  const auto path = file("c.csv", "a,b\n1\n\"1\"x,\n1,2\n" + std::string(200, 'x') + "\n3,4\n");
  EXPECT_THAT(rows_with({.paths = {path}, .skip_bad_lines = true, .max_row_bytes = 100}),
              ElementsAre(R"({"a":"1","b":"2"})", R"({"a":"3","b":"4"})"));
}

TEST_F(ReaderTest, CompressedFiles) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "{\"a\": " + std::to_string(i) + "}\n";
  for (const auto& [name, packed] :
       {std::pair{"a.jsonl.gz", gzip(text)}, {"a.jsonl.zst", zstd(text)}}) {
    EXPECT_EQ(rows(file(name, packed)).size(), 20000U) << name;
    EXPECT_EQ(rows(file(name, packed + packed)).size(), 40000U) << name;  // several streams
    EXPECT_THAT(refusal(name, packed.substr(0, packed.size() / 2)),
                HasSubstr("an end in the middle of it"));
    EXPECT_THAT(refusal(name, packed.substr(0, packed.size() - 1)),
                HasSubstr("an end in the middle of it"));
    EXPECT_THAT(refusal(name, "{\"a\": 1}\n"), HasSubstr("as its name says"));
    EXPECT_THAT(refusal(name, packed + "rest of another file"), HasSubstr("as its name says"));
  }
  EXPECT_THAT(rows(file("b.csv.gz", gzip("a\n1\n"))), ElementsAre(R"({"a":"1"})"));
  EXPECT_THAT(rows(file("b.json.zst", zstd("[{}]"))), ElementsAre("{}"));
}

TEST_F(ReaderTest, FoldersAndPatterns) {
  file("d/b.jsonl", "{\"f\": \"b\"}");
  file("d/a/z.csv", "f\naz\n");
  file("d/a/y.JSON", "[{\"f\": \"ay\"}]");
  file("d/.hidden.jsonl", "nonsense");
  file("d/README.md", "text");
  file("d/x[1].jsonl", "{\"f\": \"x\"}");
  const auto names = [&](const std::string& path) {
    std::string all;
    for (const auto& found : find_files((folder_ / path).string()))
      all += fs::relative(found.path, folder_ / "d").string() + " ";
    return all;
  };
  EXPECT_EQ(names("d"), "a/y.JSON a/z.csv b.jsonl x[1].jsonl ");
  EXPECT_EQ(names("d/*"), "b.jsonl x[1].jsonl ");
  EXPECT_EQ(names("d/**"), names("d"));
  EXPECT_EQ(names("**/**/*.jsonl"), "b.jsonl x[1].jsonl ");
  EXPECT_EQ(names("?/*/[x-z].*"), "a/y.JSON a/z.csv ");
  EXPECT_EQ(names("d/x[1].jsonl"), "x[1].jsonl ");  // it is there under this very name
  EXPECT_THAT(rows((folder_ / "d/**/[a-b].jsonl").string()), ElementsAre(R"({"f":"b"})"));

  file("e/README.md", "text");
  EXPECT_THAT(refusal((folder_ / "e").string()), HasSubstr("expected files that end in .jsonl"));
  EXPECT_THAT(refusal((folder_ / "e/*").string()), HasSubstr("got matches of other types alone"));
  EXPECT_THAT(refusal((folder_ / "e/*.jsonl").string()), HasSubstr("got no match"));
  EXPECT_THAT(refusal((folder_ / "e/README.md").string()),
              HasSubstr("expected a name that ends in"));
  EXPECT_THAT(refusal((folder_ / "missing.jsonl").string()), HasSubstr("no such file or folder"));
  EXPECT_THAT(refusal("a.parquet.gz", "x"), HasSubstr("expected a name that ends in"));
}

TEST_F(ReaderTest, FilesWithoutRowsAreRefused) {
  for (const auto& [name, text] : {std::pair{"a.jsonl", ""},
                                   {"b.jsonl", "\n \n"},
                                   {"a.json", ""},
                                   {"b.json", "[]"},
                                   {"a.csv", ""},
                                   {"b.csv", "a,b\n"}})
    EXPECT_EQ(refusal(name, text), ": expected rows, got a file with none") << name;
}

TEST_F(ReaderTest, AFileThatIsWrittenToMeanwhileIsRefused) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "{\"a\": 1}\n";
  const auto path = file("a.jsonl", text);
  RecordReader reader({.paths = {path}});
  reader.next();
  fs::resize_file(path, text.size() / 9 / 2 * 9);
  EXPECT_THAT(message_of([&] {
                while (reader.next()) {
                }
              }),
              HasSubstr("it was written to while it was read"));
}

}  // namespace
}  // namespace tessera::records
