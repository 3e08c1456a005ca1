// An index comes back as it was, and every rule is broken one at a time.
#include "tessera/checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "tessera/data/testing.h"

namespace tessera::checkpoint {
namespace {

using data::testing::refusal;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

IndexedTensor tensor_of(DType dtype, std::vector<int64_t> shape, std::vector<Range> ranges) {
  IndexedTensor tensor;
  tensor.info.dtype = dtype;
  tensor.info.shape = std::move(shape);
  tensor.ranges = std::move(ranges);
  return tensor;
}

/// Two files; a tensor in two parts, one without elements, one without dims.
Index small_index() {
  Index index{.step = 7,
              .layout = {{"num_ranks", 2}},
              .state = {{"step", 7}},
              .model = {{"model_type", "llama"}},
              .config = "train:\n  steps: 9\n"};
  index.files = {{"shard_00000.safetensors", kBlockBytes + 1, {1, ~Checksum{0}}},
                 {"shard_00001.safetensors", 100, {0xabc}},
                 {"empty.txt", 0, {}}};
  index.tensors["a"] = tensor_of(DType::f32, {2, 3}, {{0, 4, 0, 16}, {4, 2, 1, 92}});
  index.tensors["none"] = tensor_of(DType::bf16, {0, 3}, {});
  index.tensors["\"scalar\"\n"] = tensor_of(DType::i8, {}, {{0, 1, 1, 0}});
  return index;
}

std::string reading(const std::string& text) {
  return refusal([&] { parse_index("c/index.json", text); });
}

TEST(Index, ComesBackAsItWas) {
  const auto index = small_index();
  EXPECT_EQ(parse_index("index.json", format_index(index)), index);
  const Index empty{.layout = nullptr, .state = nullptr, .model = nullptr};
  EXPECT_EQ(parse_index("index.json", format_index(empty)), empty);
}

struct Broken {
  std::string name;
  std::function<void(json&)> spoil;
  std::string expected;
};

json& file(json& index) { return index["files"][0]; }
json& tensor(json& index) { return index["tensors"]["a"]; }
json& range(json& index) { return tensor(index)["ranges"][0]; }

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

const Broken kBroken[] = {
    {"NoObject", [](json& i) { i = 3; }, R"(expected an object with "format")"},
    {"NoFormat", [](json& i) { i.erase("format"); }, R"(expected an object with "format")"},
    {"AnotherFormat", [](json& i) { i["format"] = "x"; }, "format: expected tessera-checkpoint"},
    {"FormatIsANumber", [](json& i) { i["format"] = 1; }, "format: expected text, got number"},
    {"NoVersion", [](json& i) { i.erase("version"); }, R"(expected an object with "version")"},
    {"LaterVersion", [](json& i) { i["version"] = 2; },
     "version: expected 1, got 2; read it with the Tessera that wrote it"},
    {"OtherBlocks", [](json& i) { i["block_bytes"] = 4096; }, "block_bytes: expected 1048576"},
    {"NegativeStep", [](json& i) { i["step"] = -1; }, "step: expected a whole number"},
    {"StepIsNoWholeNumber", [](json& i) { i["step"] = 1.0; }, "step: expected a whole number"},
    {"StepBeyond63Bits", [](json& i) { i["step"] = uint64_t{1} << 63; },
     "step: expected a whole number"},
    {"NoLayout", [](json& i) { i.erase("layout"); }, R"(expected an object with "layout")"},
    {"NoState", [](json& i) { i.erase("state"); }, R"(expected an object with "state")"},
    {"NoModel", [](json& i) { i.erase("model"); }, R"(expected an object with "model")"},
    {"ConfigIsNoText", [](json& i) { i["config"] = 1; }, "config: expected text"},
    {"FilesIsNoList", [](json& i) { i["files"] = 1; }, "files: expected a list"},
    {"FileIsNoObject", [](json& i) { file(i) = 1; }, R"(files[0]: expected an object with "name")"},
    {"FileOutside", [](json& i) { file(i)["name"] = "../x"; },
     R"(files[0]: name: expected a file of this folder, got "../x")"},
    {"FileBelow", [](json& i) { file(i)["name"] = "a/x"; }, "expected a file of this folder"},
    {"FileAbsolute", [](json& i) { file(i)["name"] = "/x"; }, "expected a file of this folder"},
    {"FileIsTheFolder", [](json& i) { file(i)["name"] = "."; }, "expected a file of this folder"},
    {"FileIsTheFolderAbove", [](json& i) { file(i)["name"] = ".."; },
     "expected a file of this folder"},
    {"FileWithoutAName", [](json& i) { file(i)["name"] = ""; }, "expected a file of this folder"},
    {"FileWithALineBreak", [](json& i) { file(i)["name"] = "a\nb"; }, R"(got "a\nb")"},
    {"FileWithANul", [](json& i) { file(i)["name"] = std::string("a\0b", 3); },
     "expected a file of this folder"},
    {"FileTwice", [](json& i) { i["files"].push_back(file(i)); },
     "files: shard_00000.safetensors stands twice"},
    {"NegativeBytes", [](json& i) { file(i)["bytes"] = -1; }, "bytes: expected a whole number"},
    {"MoreBytesThanBlocks", [](json& i) { file(i)["bytes"] = 2 * kBlockBytes + 1; },
     "checksums: expected 16 hexadecimal digits for each of 3 blocks"},
    {"FewerBytesThanBlocks", [](json& i) { file(i)["bytes"] = kBlockBytes; },
     "for each of 1 blocks"},
    {"BytesBeyondAnyFile", [](json& i) { file(i)["bytes"] = kMost; },
     "for each of 8796093022208 blocks"},
    {"ChecksumCut", [](json& i) { file(i)["checksums"] = std::string(31, '0'); },
     "checksums: expected 16 hexadecimal digits"},
    {"ChecksumNotHexadecimal", [](json& i) { file(i)["checksums"] = std::string(32, 'g'); },
     "checksums: expected 16 hexadecimal digits"},
    {"ChecksumWithASign", [](json& i) { file(i)["checksums"] = "-" + std::string(31, '0'); },
     "checksums: expected 16 hexadecimal digits"},
    {"TensorsIsAList", [](json& i) { i["tensors"] = json::array(); },
     "tensors: expected an object"},
    {"TensorIsNoObject", [](json& i) { tensor(i) = 1; }, R"(tensor "a": expected an object)"},
    {"NameWithALineBreak", [](json& i) { i["tensors"]["x\ny"] = 1; },
     R"(tensor "x\ny": expected an object)"},
    {"UnknownDtype", [](json& i) { tensor(i)["dtype"] = "F31"; }, R"(unknown dtype "F31")"},
    {"ShapeIsNoList", [](json& i) { tensor(i)["shape"] = 6; }, "shape: expected a list"},
    {"NegativeSize",
     [](json& i) {
       tensor(i)["shape"] = {-2, -3};
     },
     "expected a whole number"},
    {"ShapeOverflows",
     [](json& i) {
       tensor(i)["shape"] = {kMost, 3};
     },
     "shape: overflows"},
    {"ShapeOverflowsBehindAZero",
     [](json& i) {
       tensor(i)["shape"] = {0, kMost, 3};
     },
     "shape: overflows"},
    {"RangesIsNoList", [](json& i) { tensor(i)["ranges"] = 1; }, "ranges: expected a list"},
    {"RangeOfThree",
     [](json& i) {
       range(i) = {0, 4, 0};
     },
     "ranges[0]: expected [begin, length, file, offset]"},
    {"RangeIsNoList", [](json& i) { range(i) = 1; }, "ranges[0]: expected a list"},
    {"RangeOfTexts",
     [](json& i) {
       range(i) = {"0", 4, 0, 16};
     },
     "expected a whole number"},
    {"RangeInNoFile",
     [](json& i) {
       range(i) = {0, 4, 3, 16};
     },
     "file: expected one of 3, got number 3"},
    {"RangeBeyondItsFile",
     [](json& i) {
       range(i) = {0, 4, 1, 85};
     },
     "expected bytes inside shard_00001.safetensors of 100 bytes"},
    {"RangeOffsetOverflows",
     [](json& i) {
       range(i) = {0, 4, 0, kMost};
     },
     "expected bytes inside"},
    {"RangeLengthOverflows",
     [](json& i) {
       range(i) = {0, kMost, 0, 16};
     },
     "expected bytes inside"},
    {"HoleAtTheBegin",
     [](json& i) {
       range(i) = {1, 3, 0, 16};
     },
     "ranges[0]: expected elements from 0 on, got 1: a hole"},
    {"Hole",
     [](json& i) {
       range(i) = {0, 3, 0, 16};
     },
     "ranges[1]: expected elements from 3 on, got 4: a hole"},
    {"ElementsTwice",
     [](json& i) {
       range(i) = {0, 5, 0, 16};
     },
     "ranges[1]: expected elements from 5 on, got 4: they overlap"},
    {"TooFewElements", [](json& i) { tensor(i)["shape"] = {7}; },
     "ranges: expected 7 elements of shape [7], got 6"},
    {"TooManyElements", [](json& i) { tensor(i)["shape"] = {5}; },
     "ranges: expected 5 elements of shape [5], got 6"},
    {"ElementsOfNone", [](json& i) { tensor(i)["shape"] = {0}; }, "expected 0 elements"},
    {"BytesTwice",
     [](json& i) {
       i["tensors"]["b"] = {{"dtype", "U8"}, {"shape", {1}}, {"ranges", {{0, 1, 1, 99}}}};
     },
     R"(tensors "a" and "b": they overlap at byte 99 of shard_00001.safetensors)"},
};

class BrokenIndex : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenIndex, IsRefusedInOneLine) {
  auto index = json::parse(format_index(small_index()));
  GetParam().spoil(index);
  const auto line = reading(index.dump());
  EXPECT_THAT(line, HasSubstr(GetParam().expected));
  EXPECT_THAT(line, StartsWith("c/index.json: "));
}

INSTANTIATE_TEST_SUITE_P(Kinds, BrokenIndex, ::testing::ValuesIn(kBroken),
                         [](const auto& info) { return info.param.name; });

TEST(Index, KeysTwiceAndCutsAreRefused) {
  const auto good = format_index(small_index());
  ASSERT_EQ(reading(good), "(accepted)");
  EXPECT_THAT(reading(R"({"step": 1, )" + good.substr(1)),
              HasSubstr(R"(the key "step" stands twice)"));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THAT(reading(good.substr(0, length)), HasSubstr("expected JSON")) << length;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
