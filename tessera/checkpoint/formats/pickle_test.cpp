#include "tessera/checkpoint/formats/pickle.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::checkpoint {
namespace {

using namespace std::string_literals;
using tessera::testing::message_of;

constexpr std::string_view kGlobals[] = {"torch.Size", "collections.OrderedDict"};

/// A pickle of protocol 4 with these opcodes and STOP.
std::string pickled(const std::string& opcodes) { return "\x80\4" + opcodes + "."; }

std::string refusal(const std::string& bytes) {
  return message_of([&] { Pickle("file", bytes, kGlobals); });
}

TEST(PickleTest, ReadsConstants) {
  const auto bytes = pickled(
      "(N\x88\x89K\xffM\xff\xffJ\xfe\xff\xff\xff\x8a\5\0\0\0\0\1\x8a\1\xff\x8a\0"
      "G\x3f\xf8\0\0\0\0\0\0\x8c\2\xc3\xa4X\1\0\0\0bC\3\0\1\2t"s);
  const Pickle pickle("file", bytes, kGlobals);
  const auto& items = std::get<const PickleSequence*>(pickle.root())->items;
  ASSERT_EQ(items.size(), 13U);
  EXPECT_TRUE(std::holds_alternative<PickleNone>(items[0]));
  EXPECT_EQ(std::get<bool>(items[1]), true);
  EXPECT_EQ(std::get<bool>(items[2]), false);
  const std::vector<int64_t> integers{255, 65535, -2, int64_t{1} << 32, -1, 0};
  for (size_t i = 0; i < integers.size(); ++i)
    EXPECT_EQ(std::get<int64_t>(items[3 + i]), integers[i]);
  EXPECT_EQ(std::get<double>(items[9]), 1.5);
  EXPECT_EQ(std::get<std::string_view>(items[10]), "ä");
  EXPECT_EQ(std::get<std::string_view>(items[11]), "b");
  EXPECT_EQ(std::get<PickleBytes>(items[12]).bytes, "\0\1\2"s);
}

TEST(PickleTest, ReadsContainersAndMemo) {
  // {"a": [1, 2], "b": the same list}
  const auto bytes = pickled("}(\x8c\1a](K\1K\2e\x94\x8c\1bh\0u"s);
  const Pickle pickle("file", bytes, kGlobals);
  const auto* dict = dict_of(pickle.root());
  ASSERT_NE(dict, nullptr);
  const auto* list = std::get<const PickleSequence*>(*dict->find("a"));
  EXPECT_EQ(list->items.size(), 2U);
  EXPECT_EQ(std::get<const PickleSequence*>(*dict->find("b")), list);
  EXPECT_EQ(dict->find("c"), nullptr);
}

TEST(PickleTest, KeepsCallsAsRecords) {
  const auto size = pickled("ctorch\nSize\nK\2K\3\x86\x85R"s);
  const Pickle pickle("file", size, kGlobals);
  EXPECT_NE(object_of(pickle.root(), "torch.Size"), nullptr);
  EXPECT_EQ(sizes_of(pickle.root()), (std::vector<int64_t>{2, 3}));

  const auto ordered = pickled("\x8c\13collections\x8c\13OrderedDict\x93)R\x8c\1kK\7s"s);
  const Pickle dict("file", ordered, kGlobals);
  EXPECT_EQ(std::get<int64_t>(*dict_of(dict.root())->find("k")), 7);
}

TEST(PickleTest, ListMayContainItself) {
  const auto bytes = pickled("]\x94h\0a"s);
  const Pickle pickle("file", bytes, kGlobals);
  const auto* list = std::get<const PickleSequence*>(pickle.root());
  EXPECT_EQ(std::get<const PickleSequence*>(list->items.at(0)), list);
}

TEST(PickleTest, RefusesOtherClassesByName) {
  EXPECT_EQ(refusal(pickled("cposix\nsystem\n\x8c\2id\x85R")),
            "file: byte 2 of the pickle: refused posix.system, which is none of the names that "
            "belong here");
  EXPECT_NE(refusal(pickled("\x8c\2os\x8c\6system\x93")).find("refused os.system"),
            std::string::npos);
  EXPECT_NE(refusal(pickled("c\33[2J\nx\n")).find("expected the name of a class"),
            std::string::npos);
}

TEST(PickleTest, RefusesDamage) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "byte 0 of the pickle: expected a pickle of protocol"},
      {"PK\3\4", "byte 0 of the pickle: expected a pickle of protocol"},
      {"\x80\1N.", "expected a pickle of protocol 2 to 5, got 1"},
      {"\x80\4N", "byte 3 of the pickle: truncated"},
      {pickled("N") + "x", "expected its end here, got 1 more bytes"},
      {pickled("NN"), "expected one value at the end"},
      {pickled(""), "expected one value at the end"},
      {pickled("(N"), "expected one value at the end"},
      {pickled("S'x'\n"), "unknown opcode 0x53"},
      {pickled("i"), "unknown opcode 0x69"},
      {pickled("X\xff\xff\xff\xffx"), "truncated"},
      {pickled("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx"), "truncated"},
      {pickled("\x8c\2\xc3("), "expected text in UTF-8"},
      {pickled("\x8c\3\xed\xa0\x80"), "expected text in UTF-8"},
      {pickled("\x8a\x9" + std::string(9, '\1')), "an integer beyond 64 bits"},
      {pickled("h\0"s), "no memo entry 0"},
      {pickled("Nr\xff\xff\xff\xff"), "expected memo entry 0, got 4294967295"},
      {pickled("Na"), "expected a list on the stack"},
      {pickled("NNa"), "expected a list, got None"},
      {pickled(")Na"), "expected a list, got a tuple of 0"},
      {pickled("N(NNu"), "expected a dict, got None"},
      {pickled("}(Nu"), "expected keys with values"},
      {pickled("N(a"), "expected 1 values on the stack"},
      {pickled("t"), "expected a mark"},
      {pickled("N)R"), "expected a class or function, got None"},
      {pickled("ctorch\nSize\n]R"), "expected a tuple of arguments, got a list"},
      {pickled("NNb"), "expected an object, got None"},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_NE(refusal(bytes).find(expected), std::string::npos) << expected << "\n"
                                                                << refusal(bytes);
  }
}

}  // namespace
}  // namespace tessera::checkpoint
