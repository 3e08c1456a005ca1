#include "tessera/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/testing.h"
#include "tessera/data/token_source.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::bytes_of;
using ::tessera::data::testing::llmc_header;
using ::tessera::data::testing::refusal;
using ::tessera::data::testing::tokens_of;
using tessera::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(TokenFile, ReadsBareUint16AndUint32) {
  const TemporaryFolder folder;
  const auto narrow = folder.write("a.bin", bytes_of<uint16_t>({1, 65535, 3}));
  const auto wide = folder.write("b.bin", bytes_of<uint32_t>({1, 4000000000, 3}));
  EXPECT_THAT(tokens_of({.paths = {narrow}}), ElementsAre(1, 65535, 3));
  EXPECT_THAT(tokens_of({.paths = {wide}, .token_dtype = TokenDtype::uint32}),
              ElementsAre(1, 4000000000, 3));
}

TEST(TokenFile, ReadsBothLlmcHeaders) {
  const TemporaryFolder folder;
  const auto gpt2 =
      folder.write("a.bin", llmc_header(20240520, 1, 2) + bytes_of<uint16_t>({7, 50256}));
  const auto llama =
      folder.write("b.bin", llmc_header(20240801, 7, 2) + bytes_of<uint32_t>({7, 128001}));
  EXPECT_THAT(tokens_of({.paths = {gpt2, llama}}), ElementsAre(7, 50256, 7, 128001));
}

TEST(TokenFile, RefusesBrokenTokenFiles) {
  const TemporaryFolder folder;
  const auto line = [&](const std::string& content, TokenDtype dtype = TokenDtype::automatic) {
    const auto path = folder.write("x.bin", content);
    return refusal([&] { open_token_file(path, dtype); });
  };
  EXPECT_THAT(line(""), HasSubstr("x.bin: expected tokens, got an empty file"));
  EXPECT_THAT(line("abc"), HasSubstr("expected a multiple of 2 bytes, got 3"));
  EXPECT_THAT(line("abcdef", TokenDtype::uint32),
              HasSubstr("expected a multiple of 4 bytes, got 6"));
  const auto two = bytes_of<uint16_t>({1, 2});
  EXPECT_THAT(line(llmc_header(20240520, 1, 3) + two),
              AllOf(HasSubstr("truncated"), HasSubstr("promises 3 tokens (6 bytes), got 4 bytes")));
  EXPECT_THAT(line(llmc_header(20240520, 1, 1) + two),
              HasSubstr("promises 1 tokens (2 bytes), got 4 bytes"));
  EXPECT_THAT(line(llmc_header(20240520, 1, -1) + two), HasSubstr("promises -1 tokens"));
  EXPECT_THAT(line(llmc_header(20240520, 1, 0)), HasSubstr("got an llm.c header alone"));
  EXPECT_THAT(line(llmc_header(20240520, 2, 2) + two),
              HasSubstr("expected version 1 with magic 20240520, got version 2"));
  EXPECT_THAT(line(llmc_header(20240520, 1, 2).substr(0, 600)),
              HasSubstr("expected an llm.c header of 1024 bytes"));
  EXPECT_THAT(line(llmc_header(20240520, 1, 2) + two, TokenDtype::uint32),
              HasSubstr("its header says uint16"));
  EXPECT_THAT(refusal([&] { open_token_file(folder.path() / "no.bin"); }), HasSubstr("no.bin"));
}

/// The parts of a Megatron index, to be broken one at a time.
struct MegatronParts {
  std::string magic{"MMIDIDX\0\0", 9};
  int64_t version = 1, code = 8, num_sequences = 3, num_documents = 3;
  std::vector<int64_t> sizes{2, 0, 3}, pointers{0, 4, 4}, documents{0, 1, 3};

  std::string bytes() const {
    return magic + bytes_of<int64_t>({version}) + bytes_of<uint8_t>({code}) +
           bytes_of<int64_t>({num_sequences, num_documents}) + bytes_of<int32_t>(sizes) +
           bytes_of<int64_t>(pointers) + bytes_of<int64_t>(documents);
  }
};

TEST(Megatron, ReadsEveryTypeByAnyOfItsNames) {
  const TemporaryFolder folder;
  MegatronParts parts;
  folder.write("m.idx", parts.bytes());
  folder.write("m.bin", bytes_of<uint16_t>({10, 11, 12, 13, 14}));
  for (const auto* name : {"m", "m.idx", "m.bin"}) {
    EXPECT_THAT(tokens_of({.paths = {(folder.path() / name).string()}}),
                ElementsAre(10, 11, 12, 13, 14))
        << name;
  }
  parts.code = 4;
  parts.pointers = {0, 8, 8};
  folder.write("m.idx", parts.bytes());
  folder.write("m.bin", bytes_of<int32_t>({10, 11, 12, 13, 2000000000}));
  EXPECT_THAT(tokens_of({.paths = {folder.path() / "m"}}), ElementsAre(10, 11, 12, 13, 2000000000));
  parts.code = 5;
  parts.pointers = {0, 16, 16};
  folder.write("m.idx", parts.bytes());
  folder.write("m.bin", bytes_of<int64_t>({10, 11, 12, 13, int64_t{1} << 40}));
  EXPECT_THAT(tokens_of({.paths = {folder.path() / "m"}}),
              ElementsAre(10, 11, 12, 13, int64_t{1} << 40));
}

TEST(Megatron, RefusesAnIndexThatDisagrees) {
  const TemporaryFolder folder;
  folder.write("m.bin", bytes_of<uint16_t>({10, 11, 12, 13, 14}));
  const auto line = [&](auto change) {
    MegatronParts parts;
    change(parts);
    const auto path = folder.write("m.idx", parts.bytes());
    return refusal([&] { open_megatron(path); });
  };
  EXPECT_EQ(line([](auto&) {}), "(accepted)");
  EXPECT_THAT(line([](auto& p) { p.magic = "something"; }), HasSubstr("expected a Megatron index"));
  EXPECT_THAT(line([](auto& p) { p.version = 2; }), HasSubstr("version 1, got 2"));
  EXPECT_THAT(line([](auto& p) { p.code = 6; }), HasSubstr("got 6"));
  EXPECT_THAT(line([](auto& p) { p.num_sequences = 4; }), HasSubstr("expected 4 sequences"));
  EXPECT_THAT(line([](auto& p) { p.num_documents = -1; }), HasSubstr("-1 document entries"));
  EXPECT_THAT(line([](auto& p) { p.num_sequences = INT64_MAX; }),
              HasSubstr("m.idx: expected 9223372036854775807"));
  EXPECT_THAT(line([](auto& p) { p.sizes[0] = -2; }),
              HasSubstr("sequence 0: expected a size of 0 or more, got -2"));
  EXPECT_THAT(line([](auto& p) { p.pointers[1] = 2; }),
              HasSubstr("sequence 1: expected to begin at byte 4"));
  EXPECT_THAT(line([](auto& p) { p.sizes[2] = 4; }),
              HasSubstr("m.bin: expected 12 bytes (6 tokens of uint16"));
  EXPECT_THAT(line([](auto& p) { p.documents[1] = 4; }), HasSubstr("document entry 1"));
  EXPECT_THAT(line([](auto& p) { p.documents[0] = 1; }), HasSubstr("document entry 0"));
  EXPECT_THAT(refusal([&] {
                open_megatron(folder.write("short.idx", MegatronParts().bytes().substr(0, 20)));
              }),
              HasSubstr("truncated"));
  EXPECT_THAT(refusal([&] { open_megatron(folder.path() / "none"); }), HasSubstr("none.idx"));
}

TEST(TokenDtype, IsNamed) {}

}  // namespace
}  // namespace tessera::data
