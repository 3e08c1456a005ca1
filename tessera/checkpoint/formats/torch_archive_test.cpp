#include "tessera/checkpoint/formats/torch_archive.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"

namespace tessera::checkpoint {
namespace {

using namespace std::string_literals;
using tessera::testing::message_of;

template <typename T>
std::string bytes_of(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof(T)};
}

using ZipEntries = std::vector<std::pair<std::string, std::string>>;

/// A zip file with stored entries and 32-bit records, as Python's zipfile would write it.
std::string zip_of(const ZipEntries& entries) {
  std::string file, directory;
  for (const auto& [name, content] : entries) {
    const auto size = bytes_of(static_cast<uint32_t>(content.size()));
    const auto common = "\0\0\0\0\0\0\0\0\0\0\0\0"s + size + size +
                        bytes_of(static_cast<uint16_t>(name.size())) + "\0\0"s;
    directory += "PK\1\2\0\0\0\0"s + common + std::string(10, '\0') +
                 bytes_of(static_cast<uint32_t>(file.size())) + name;
    file += "PK\3\4\0\0"s + common + name + content;
  }
  const auto count = bytes_of(static_cast<uint16_t>(entries.size()));
  return file + directory + "PK\5\6\0\0\0\0"s + count + count +
         bytes_of(static_cast<uint32_t>(directory.size())) +
         bytes_of(static_cast<uint32_t>(file.size())) + "\0\0"s;
}

/// The pickle of a tensor of float32, sizes and numbers below 256.
std::string tensor_pickle(int offset, const std::string& shape, const std::string& stride,
                          int count) {
  return "\x80\2ctorch._utils\n_rebuild_tensor_v2\n((\x8c\7storagectorch\nFloatStorage\n"s +
         "\x8c\1"s + "0\x8c\3" + "cpuK" + static_cast<char>(count) + "tQK" +
         static_cast<char>(offset) + shape + stride + "\x89" + "ccollections\nOrderedDict\n)RtR.";
}

std::string floats(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += bytes_of(static_cast<float>(i));
  return bytes;
}

std::string archive_of(const std::string& pickle, size_t num_floats) {
  return zip_of(
      {{"x/data.pkl", pickle}, {"x/byteorder", "little"}, {"x/data/0", floats(num_floats)}});
}

std::string archive_refusal(const std::string& file) {
  return message_of([&] {
    const TorchArchive archive("file", file);
    archive.tensor(archive.root());
  });
}

TEST(TorchArchiveTest, ReadsStridedTensors) {
  // 2 x 3 from element 1 on, transposed: strides 1 and 2
  const auto file = archive_of(tensor_pickle(1, "K\2K\3\x86", "K\1K\2\x86", 8), 8);
  const TorchArchive archive("file", file);
  const auto tensor = archive.tensor(archive.root());
  EXPECT_EQ(tensor.info, (TensorInfo{DType::f32, {2, 3}}));
  std::vector<float> values(6);
  tensor.read(0, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values, (std::vector<float>{1, 3, 5, 2, 4, 6}));
  std::vector<float> part(3);
  tensor.read(2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<float>{5, 2, 4}));
}

TEST(TorchArchiveTest, ReadsTensorsWithoutElementsOrDims) {
  const auto empty = archive_of(tensor_pickle(0, "K\0K\3\x86"s, "K\3K\1\x86", 0), 0);
  const TorchArchive none("file", empty);
  none.tensor(none.root()).read(0, {});
  const auto file = archive_of(tensor_pickle(1, ")", ")", 2), 2);
  const TorchArchive archive("file", file);
  float value = 0;
  archive.tensor(archive.root()).read(0, std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, 1);
}

TEST(TorchArchiveTest, RefusesTensorsBeyondTheirStorage) {
  const auto good = tensor_pickle(0, "K\2K\3\x86", "K\3K\1\x86", 6);
  EXPECT_EQ(archive_refusal(archive_of(good, 6)), "no error");
  const std::pair<std::string, std::string> cases[] = {
      {archive_of(good, 5), "missing or of another size"},
      {archive_of(good, 7), "missing or of another size"},
      {zip_of({{"x/data.pkl", good}}), "missing or of another size"},
      {archive_of(tensor_pickle(1, "K\2K\3\x86", "K\3K\1\x86", 6), 6), "beyond its storage of 24"},
      {archive_of(tensor_pickle(0, "K\2K\3\x86", "K\4K\1\x86", 6), 6), "beyond its storage of 24"},
      {archive_of(tensor_pickle(0, "K\2K\7\x86", "K\0K\1\x86"s, 7), 7), "more elements than"},
      {archive_of(tensor_pickle(0, "K\2K\3\x86", "K\1\x85", 6), 6), "damaged offset, shape"},
      {archive_of(tensor_pickle(0, "K\2\x8a\x8\0\0\0\0\0\0\0\x70\x86"s, "K\0K\0\x86"s, 6), 6),
       "beyond its storage"},
      {archive_of("\x80\2K\1.", 0), "expected a tensor, got 1"},
      {archive_of("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.", 0), "a tensor without a storage"},
      {archive_of("\x80\2"
                  "cbuiltins\neval\n)R.",
                  0),
       "refused builtins.eval"},
  };
  for (const auto& [file, expected] : cases)
    EXPECT_NE(archive_refusal(file).find(expected), std::string::npos) << expected << "\n"
                                                                       << archive_refusal(file);
}

TEST(TorchArchiveTest, RefusesOtherZipFiles) {
  const auto good = archive_of(tensor_pickle(0, "K\2\x85", "K\1\x85", 2), 2);
  EXPECT_EQ(archive_refusal(good), "no error");
  const auto changed = [&](size_t at, char value) {
    auto file = good;
    file.at(at) = value;
    return file;
  };
  const size_t directory = good.find("PK\1\2"), end = good.find("PK\5\6");
  const std::pair<std::string, std::string> cases[] = {
      {"", "expected a zip file"},
      {good + "comment", "expected a zip file"},
      {good.substr(1), "damaged"},
      {changed(directory, 'Q'), "unknown record"},
      {changed(directory + 10, 8), "whose entries are stored"},
      {changed(directory + 8, 1), "whose entries are stored"},
      {changed(directory + 24, 127), "whose entries are stored"},
      {changed(directory + 28, 9), "damaged"},
      {changed(directory + 45, 127), "damaged zip file: an entry lies outside"},
      {changed(end + 10, 2), "its directory is too long"},
      {changed(end + 10, 100), "its directory is not where"},
      {changed(end + 16, 9), "its directory is not where"},
      {changed(0, 'Q'), "unknown record"},
      {changed(31, 'q'), "an entry has two names"},
      {zip_of({{"x/data.pkl", "."}, {"x/data.pkl", "."}}), "a name stands twice"},
      {zip_of({{"x/other", "."}}), "no data.pkl in it"},
      {zip_of({{"x/data.pkl", "\x80\2N."}, {"x/byteorder", "big"}}), "little-endian"},
  };
  for (const auto& [file, expected] : cases)
    EXPECT_NE(archive_refusal(file).find(expected), std::string::npos) << expected << "\n"
                                                                       << archive_refusal(file);
}

TEST(TorchArchiveTest, RefusesEntriesBeyondTheFile) {
  auto file = zip_of({{"x/data.pkl", "\x80\2N."}, {"x/data/0", ""}});
  const size_t first = file.find("PK\1\2"), second = file.find("PK\1\2", first + 1);
  file[first + 44] = 1;  // both begin far behind the end, the second behind the first
  file[second + 44] = 2;
  EXPECT_EQ(archive_refusal(file), "file: a damaged zip file: an entry lies outside");
}

TEST(TorchArchiveTest, RefusesEveryTruncation) {
  const auto file = read_file("tests/fixtures/deepspeed_universal/zero/bias/fp32.pt");
  const TorchArchive whole("file", file);
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(archive_refusal(file.substr(0, size)), "no error") << size;
}

}  // namespace
}  // namespace tessera::checkpoint
