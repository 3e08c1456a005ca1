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

IndexedTensor tensor_of(DType dtype, std::vector<int64_t> shape, std::vector<StoredExtent> ranges) {
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
  index.tensors["a"] = tensor_of(DType::f32, {2, 3}, {{{0, 4}, 0, 16}, {{4, 2}, 1, 92}});
  index.tensors["none"] = tensor_of(DType::bf16, {0, 3}, {});
  index.tensors["\"scalar\"\n"] = tensor_of(DType::i8, {}, {{{0, 1}, 1, 0}});
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
    {"LaterVersion", [](json& i) { i["version"] = 3; },
     "version: expected 1 or 2, got 3; read it with the Tessera that wrote it"},
    {"VersionZero", [](json& i) { i["version"] = 0; }, "version: expected 1 or 2, got 0"},
    {"OtherBlocks", [](json& i) { i["block_bytes"] = 4096; }, "block_bytes: expected 1048576"},
    {"NegativeStep", [](json& i) { i["step"] = -1; }, "step: expected a whole number"},
    {"StepIsNoWholeNumber", [](json& i) { i["step"] = 1.0; }, "step: expected a whole number"},
    {"StepBeyond63Bits", [](json& i) { i["step"] = uint64_t{1} << 63; },
     "step: expected a whole number"},
    {"NoLayout", [](json& i) { i.erase("layout"); }, R"(expected an object with "layout")"},
    {"NoState", [](json& i) { i.erase("state"); }, R"(expected an object with "state")"},
    {"NoModel", [](json& i) { i.erase("model"); }, R"(expected an object with "model")"},
    {"ConfigIsNoText", [](json& i) { i["config"] = 1; }, "config: expected text"},
    {"StepBeyondAnyRun", [](json& i) { i["step"] = uint64_t{1} << 50; },
     "step: expected a whole number from 0 to 2^40, got 1125899906842624"},
    {"RanksAreText", [](json& i) { i["layout"]["num_ranks"] = "x"; },
     R"(layout.num_ranks: expected a whole number from 1 to 2^40, got "x")"},
    {"NoRanks", [](json& i) { i["layout"]["num_ranks"] = 0; }, "layout.num_ranks: expected"},
    {"LayoutIsAList", [](json& i) { i["layout"] = json::array(); }, "layout: expected an object"},
    {"NegativeSamples", [](json& i) { i["state"]["samples_seen"] = -5; },
     "state.samples_seen: expected a whole number from 0 to 2^53, got -5"},
    {"SamplesWithAFraction", [](json& i) { i["state"]["samples_seen"] = 0.5; },
     "state.samples_seen: expected"},
    {"TokensBeyondAnyRun", [](json& i) { i["state"]["tokens_seen"] = kMost; },
     "state.tokens_seen: expected"},
    {"StateIsANumber", [](json& i) { i["state"] = 3; }, "state: expected an object, got 3"},
    {"SeedsAreAList",
     [](json& i) {
       i["state"]["seeds"] = {1, 2};
     },
     "state.seeds: expected an object"},
    {"SeedIsText", [](json& i) { i["state"]["seeds"]["data"] = "1"; },
     "state.seeds.data: expected"},
    {"OptimizerStepIsNegative", [](json& i) { i["state"]["optimizer"]["step"] = -1; },
     "state.optimizer.step: expected"},
    {"FewerStepsAreText", [](json& i) { i["state"]["optimizer"]["fewer_steps"]["a"] = "x"; },
     "state.optimizer.fewer_steps[0]: expected"},
    {"RatesAreNoNumbers", [](json& i) { i["state"]["optimizer"]["learning_rates"] = {"x"}; },
     "state.optimizer.learning_rates[0]: expected a number"},
    {"ScaleOfZero", [](json& i) { i["state"]["loss_scaler"]["scale"] = 0; },
     "state.loss_scaler.scale: expected a number above 0, got 0"},
    {"GeneratorIsNoHexadecimal", [](json& i) { i["state"]["generators"] = {"0g"}; },
     "state.generators[0]: expected hexadecimal digits"},
    {"RunIdIsAPath", [](json& i) { i["state"]["run_id"] = "../x"; }, "state.run_id: expected"},
    {"AllIsHeldOut", [](json& i) { i["state"]["validation_fraction"] = 1; },
     "state.validation_fraction: expected"},
    {"ModelIsText", [](json& i) { i["model"] = "llama"; }, "model: expected an object"},
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
     "ranges: expected each of the 6 elements of shape [2, 3] once, got no element 0"},
    {"Hole",
     [](json& i) {
       range(i) = {0, 3, 0, 16};
     },
     "ranges: expected each of the 6 elements of shape [2, 3] once, got no element 3"},
    {"ElementsTwice",
     [](json& i) {
       range(i) = {0, 5, 0, 16};
     },
     "ranges: expected each of the 6 elements of shape [2, 3] once, got element 4 twice"},
    {"TooFewElements", [](json& i) { tensor(i)["shape"] = {7}; },
     "ranges: expected each of the 7 elements of shape [7] once, got no element 6"},
    {"TooManyElements", [](json& i) { tensor(i)["shape"] = {5}; },
     "of the 5 elements of shape [5] once, got 2 elements from 4 on, of 5"},
    {"ElementsOfNone", [](json& i) { tensor(i)["shape"] = {0}; },
     "of the 0 elements of shape [0] once, got 4 elements from 0 on, of 0"},
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

/// A tensor [4, 6]: its columns 0 to 3, cut inside the second row, and 4 and 5.
Index striped_index() {
  Index index{.layout = nullptr, .state = nullptr, .model = nullptr};
  index.files = {{"shard_00000.safetensors", 100, {1}}, {"shard_00001.safetensors", 100, {2}}};
  index.tensors["w"] = tensor_of(
      DType::f32, {4, 6},
      {{{0, 6, {0, 4, 6}}, 0, 0}, {{0, 8, {4, 2, 6}}, 1, 0}, {{6, 10, {0, 4, 6}}, 0, 24}});
  index.tensors["plain"] = tensor_of(DType::i8, {3}, {{{0, 3}, 1, 90}});
  return index;
}

TEST(Index, OfStripesComesBackAsItWas) {
  const auto index = striped_index();
  const auto text = format_index(index);
  EXPECT_EQ(parse_index("index.json", text), index);
  EXPECT_THAT(text, HasSubstr("[[0,6,0,0,0,4,6],[0,8,1,0,4,2,6],[6,10,0,24,0,4,6]]"));
}

TEST(Index, IsOfTheVersionThatItsReadersNeed) {
  auto index = striped_index();
  EXPECT_EQ(json::parse(format_index(index))["version"], 2);
  index.tensors.erase("w");
  auto plain = json::parse(format_index(index));
  EXPECT_EQ(plain["version"], 1);
  EXPECT_EQ(plain["tensors"]["plain"]["ranges"], json({{0, 3, 1, 90}}));
  plain["version"] = 2;
  EXPECT_EQ(parse_index("index.json", plain.dump()), index);
}

json& striped(json& index, size_t i) { return index["tensors"]["w"]["ranges"][i]; }

const Broken kBrokenStripes[] = {
    {"InVersionOne", [](json& i) { i["version"] = 1; },
     "ranges[0]: expected [begin, length, file, offset]"},
    {"OfSix", [](json& i) { striped(i, 1).erase(6); },
     "ranges[1]: expected [begin, length, file, offset] and, of a stripe, its offset, run and "
     "stride"},
    {"OfEight", [](json& i) { striped(i, 1).push_back(0); }, "ranges[1]: expected [begin, length,"},
    {"OfText", [](json& i) { striped(i, 1)[5] = "2"; }, "ranges[1][5]: expected a whole number"},
    {"NegativeOffset", [](json& i) { striped(i, 1)[4] = -1; }, "[4]: expected a whole number"},
    {"WithoutRun", [](json& i) { striped(i, 1)[5] = 0; },
     "ranges[1]: expected a stripe of 0 < run < stride and offset + run <= stride, got 4+0/6"},
    {"WithoutStride", [](json& i) { striped(i, 1)[6] = 0; }, "got 4+2/0"},
    {"OfTheWhole", [](json& i) { striped(i, 0) = {0, 24, 0, 0, 0, 6, 6}; }, "got 0+6/6"},
    {"RunBeyondStride", [](json& i) { striped(i, 1)[5] = 7; }, "got 4+7/6"},
    {"EndBeyondStride", [](json& i) { striped(i, 1)[4] = 5; }, "got 5+2/6"},
    {"EndOverflows", [](json& i) { striped(i, 1)[4] = kMost; }, "+2/6"},
    {"RunOverflows",
     [](json& i) {
       striped(i, 1)[5] = kMost;
       striped(i, 1)[6] = kMost;
     },
     "expected a stripe of"},
    {"PartOfAStride", [](json& i) { striped(i, 1)[6] = 7; },
     "ranges: expected each of the 24 elements of shape [4, 6] once, got a stripe 4+2/7"},
    {"StrideBeyondTheTensor", [](json& i) { striped(i, 1)[6] = kMost; }, "got a stripe 4+2/"},
    {"TwoStrides", [](json& i) { striped(i, 1) = {0, 4, 1, 0, 4, 2, 12}; },
     "got stripes of both 6 and 12 elements"},
    {"BeginBeyondItsEnd", [](json& i) { striped(i, 1)[0] = 9; }, "got 8 elements from 9 on, of 8"},
    {"EndBeyondItsEnd", [](json& i) { striped(i, 1)[0] = 1; }, "got 8 elements from 1 on, of 8"},
    {"BeginOverflows", [](json& i) { striped(i, 1)[0] = kMost; }, "got 8 elements from 9223372"},
    {"LengthOverflows", [](json& i) { striped(i, 1)[1] = kMost; }, "expected bytes inside"},
    {"WithoutElements", [](json& i) { striped(i, 1)[1] = 0; },
     "ranges[1]: expected elements of its stripe, got none"},
    {"Hole", [](json& i) { striped(i, 0)[1] = 5; }, "once, got no element 7"},
    {"Overlap", [](json& i) { striped(i, 0)[1] = 7; }, "once, got element 8 twice"},
    {"Missing", [](json& i) { i["tensors"]["w"]["ranges"].erase(1); }, "once, got no element 4"},
    {"OutOfOrder", [](json& i) { striped(i, 1).swap(striped(i, 2)); },
     "ranges[2]: expected ranges in the order of their first elements, got 4 after 8"},
};

class BrokenStripe : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenStripe, IsRefusedInOneLine) {
  auto index = json::parse(format_index(striped_index()));
  GetParam().spoil(index);
  const auto line = reading(index.dump());
  EXPECT_THAT(line, HasSubstr(GetParam().expected));
  EXPECT_THAT(line, StartsWith(R"(c/index.json: tensor "w": ranges)"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, BrokenStripe, ::testing::ValuesIn(kBrokenStripes),
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
