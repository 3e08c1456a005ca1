// Every rule of the format, broken one at a time.
#include "tessera/checkpoint/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

using data::testing::bytes_of;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::HasSubstr;

/// A file of a header and some bytes of data.
std::string file_of(const std::string& header, size_t data_bytes, int64_t stated_length = -1) {
  const auto length = stated_length < 0 ? static_cast<int64_t>(header.size()) : stated_length;
  return bytes_of<int64_t>({length}) + header + std::string(data_bytes, '\1');
}

std::string reading_header(const std::string& file) {
  const TemporaryFolder folder;
  const auto path = folder.write("x.safetensors", file);
  return refusal([&] { SafetensorsFile opened(path); });
}

/// One tensor "a" with the given entry.
std::string entry(const std::string& text) { return "{\"a\":" + text + "}"; }

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(reading_header(file_of("{}", 0)), "(accepted)");
  EXPECT_EQ(
      reading_header(file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )", 4)),
      "(accepted)");
  EXPECT_EQ(
      reading_header(file_of(R"({"a":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", 0)),
      "(accepted)");
  EXPECT_EQ(
      reading_header(file_of(
          R"({"__metadata__":{"format":"pt"},"é":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},)"
          R"("b":{"shape":[1],"data_offsets":[0,2],"dtype":"BF16"}})",
          5)),
      "(accepted)");
}

struct BrokenText {
  std::string name, file, expected;
};

const std::string kNull(1, '\0');
const BrokenText kBrokenHeaders[] = {
    {"EmptyFile", "", "truncated: expected a safetensors file of at least 8 bytes, got 0"},
    {"SevenBytes", "1234567", "got 7"},
    {"HeaderLengthBeyondTheFile", file_of("{}", 0, 3),
     "expected a header of 3 bytes, got a file of 10"},
    {"HeaderTooLong", file_of("{}", 0, 100'000'001), "at most 100000000 bytes, got 100000001"},
    {"HeaderLengthWithTheTopBit", std::string(8, '\xFF') + "{}", "at most 100000000 bytes"},
    {"NoHeader", file_of("", 4), "does not begin with '{'"},
    {"HeaderBeginsWithASpace", file_of(" {}", 0), "does not begin with '{'"},
    {"HeaderIsAList", file_of("[]", 0), "does not begin with '{'"},
    {"NotJson", file_of("{\"a\":", 0), "expected JSON in UTF-8"},
    {"TextAfterTheObject", file_of("{}x", 0), "expected JSON in UTF-8"},
    {"NulAfterTheObject", file_of("{}" + kNull + "x", 0), "a NUL byte in its JSON"},
    {"NotUtf8", file_of("{\"\xFF\":{}}", 0), "expected JSON in UTF-8"},
    {"NameTwice",
     file_of(
         R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
         1),
     R"(the key "a" stands twice)"},
    {"FieldTwice",
     file_of(entry(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})"), 1),
     R"(the key "dtype" stands twice)"},
    {"MetadataIsNoObject", file_of(R"({"__metadata__":"pt"})", 0),
     "__metadata__: expected an object of texts"},
    {"MetadataHoldsANumber", file_of(R"({"__metadata__":{"step":3}})", 0),
     R"("step": expected text, got number)"},
    {"EntryIsNoObject", file_of(entry("3"), 0), R"(tensor "a": expected an object, got number)"},
    {"NoDtype", file_of(entry(R"({"shape":[1],"data_offsets":[0,1]})"), 1), "dtype is missing"},
    {"NoShape", file_of(entry(R"({"dtype":"U8","data_offsets":[0,1]})"), 1), "shape is missing"},
    {"NoOffsets", file_of(entry(R"({"dtype":"U8","shape":[1]})"), 1), "data_offsets is missing"},
    {"OtherField", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})"), 1),
     "got other keys"},
    {"UnknownDtype", file_of(entry(R"({"dtype":"F31","shape":[1],"data_offsets":[0,1]})"), 1),
     "unknown dtype \"F31\""},
    {"DtypeIsANumber", file_of(entry(R"({"dtype":32,"shape":[1],"data_offsets":[0,1]})"), 1),
     "dtype: expected text"},
    {"ShapeIsNoList", file_of(entry(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})"), 1),
     "shape: expected a list"},
    {"NegativeSize", file_of(entry(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), 1),
     "got -1"},
    {"FractionalSize", file_of(entry(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"), 1),
     "got 1.0"},
    {"SizeBeyond63Bits",
     file_of(entry(R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]})"), 0),
     "got 9223372036854775808"},
    {"NumberBeyondADouble",
     file_of(entry(R"({"dtype":"U8","shape":[1e999],"data_offsets":[0,0]})"), 0),
     "a number in its JSON is too large"},
    {"ShapeOverflows",
     file_of(entry(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0),
     "overflows"},
    {"ShapeOverflowsBehindAZero",
     file_of(entry(R"({"dtype":"F64","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"), 0),
     "overflows"},
    {"OneOffset", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1]})"), 1),
     "expected [begin, end]"},
    {"OffsetsReversed", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), 1),
     "expected begin <= end, got [1, 0]"},
    {"NegativeOffset", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})"), 1),
     "got -1"},
    {"SizeDisagrees", file_of(entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), 4),
     "dtype and shape take 8 bytes, but data_offsets [0, 4] hold 4"},
    {"Hole",
     file_of(
         R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
         3),
     R"(tensor "b": expected its bytes to begin at 1, where the one before ends, got 2: a hole)"},
    {"HoleAtTheBegin", file_of(entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"), 2),
     "a hole"},
    {"Overlap",
     file_of(
         R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         3),
     "they overlap"},
    {"SameBytesTwice",
     file_of(
         R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
         2),
     "they overlap"},
    {"Truncated", file_of(entry(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), 3),
     "truncated: expected 4 bytes of tensors after the header, got 3"},
    {"TooLong", file_of(entry(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), 5),
     "too long: expected 4 bytes of tensors after the header, got 5"},
    {"NameWithALineBreak", file_of(R"({"a\nb":3})", 0), R"(tensor "a\nb": expected an object)"},
};

class BrokenHeader : public ::testing::TestWithParam<BrokenText> {};

TEST_P(BrokenHeader, IsRefusedInOneLine) {
  const auto line = reading_header(GetParam().file);
  EXPECT_THAT(line, HasSubstr(GetParam().expected));
  EXPECT_THAT(line, HasSubstr("x.safetensors: "));
  EXPECT_EQ(line.find("(more than one line)"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BrokenHeader, ::testing::ValuesIn(kBrokenHeaders),
                         [](const auto& info) { return info.param.name; });

TEST(SafetensorsHeader, AnyCutOfAGoodFileIsRefused) {
  const auto good = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_EQ(reading_header(good), "(accepted)");
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(reading_header(good.substr(0, length)), "(accepted)") << length;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
