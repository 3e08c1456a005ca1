#include "tessera/report/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tests/support/temporary_folder.h"

namespace tessera::report {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

/// The data of each record; asserts framing and checksums by building every record anew.
std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> out;
  while (!file.empty()) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const std::string_view record = file.substr(0, length + 16);
    EXPECT_EQ(record.size(), length + 16);
    out.emplace_back(record.substr(12, length));
    EXPECT_EQ(hex(record), hex(tf_record(out.back())));
    file.remove_prefix(record.size());
  }
  return out;
}

TEST(Crc32c, EqualsThePublishedCheckValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);  // RFC 3720, B.4
}

TEST(TfRecord, IsLengthAndDataEachWithItsMaskedChecksum) {
  EXPECT_EQ(hex(tf_record("abc")),
            "0300000000000000"
            "b099490e"
            "616263"
            "6e57f121");
}

TEST(ScalarEvent, IsTheProtobufMessage) {
  const Scalar loss{"a/b", 1.5};
  EXPECT_EQ(hex(scalar_event(2.0, 300, {&loss, 1})),
            "09"
            "0000000000000040"  // wall_time = 2.0
            "10"
            "ac02"  // step = 300
            "2a0c"
            "0a0a"
            "0a03"
            "612f62"
            "15"
            "0000c03f");  // summary { value { tag, simple_value } }
  EXPECT_EQ(hex(scalar_event(0, -1, {})).substr(18),
            "10ffffffffffffffffff01"
            "2a00");
}

class EventWriterTest : public tessera::testing::TemporaryFolderTest {};

TEST_F(EventWriterTest, StartsWithTheVersionAndIsNamedAsTensorBoardWants) {
  EventWriter writer({folder_});
  EXPECT_THAT(writer.path().filename().string(),
              ::testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+\\.[0-9]+\\.0"));
  const auto events = records(read_file(writer.path()));
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST_F(EventWriterTest, ASecondWriterInTheSameSecondTakesAnotherFile) {
  EventWriter first({folder_}), second({folder_});
  EXPECT_NE(first.path(), second.path());
}

TEST_F(EventWriterTest, AFullDiskIsASystemError) {
  write_file(folder_ / "file", "");
  EXPECT_THROW(EventWriter({folder_ / "file"}), SystemError);
}

/// The run that tests/integration/tensorboard.sh gives to the real TensorBoard, in the folder of
/// TESSERA_EVENTS_DIR.
TEST_F(EventWriterTest, WritesARun) {
  const char* kept = std::getenv("TESSERA_EVENTS_DIR");
  EventWriter writer({kept != nullptr ? std::filesystem::path(kept) : folder_});
  writer.hyper_parameters({{"optimizer.learning_rate", 3e-4},
                           {"optimizer.type", std::string("adamw")},
                           {"optimizer.decay_norms_and_biases", false},
                           {"data.shuffle", true}});
  for (int64_t step = 1; step <= 100; ++step) {
    StepRecord record{.step = step,
                      .loss = 8.0 / static_cast<double>(step),
                      .learning_rate = 1e-5 * static_cast<double>(step),
                      .tokens_per_second = 5812,
                      .mfu = 0.64,
                      .tokens_seen = 2048 * step};
    if (step == 50) record.grad_norm = NAN;
    writer.step(record);
  }
  writer.scalars(100, std::vector<Scalar>{{"validation/loss", 0.25}});
  writer.finish(true);
  const auto events = records(read_file(writer.path()));
  ASSERT_EQ(events.size(), 1 + 2 + 100 + 1 + 1);
  EXPECT_THAT(events[1], ::testing::HasSubstr("_hparams_/experiment"));
  EXPECT_THAT(events[2], ::testing::HasSubstr("_hparams_/session_start_info"));
  EXPECT_THAT(events[3], ::testing::HasSubstr("train/loss"));
  EXPECT_THAT(events[103], ::testing::HasSubstr("validation/loss"));
  EXPECT_THAT(events[104], ::testing::HasSubstr("_hparams_/session_end_info"));
}

}  // namespace
}  // namespace tessera::report
