#include "tessera/report/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/report/output.h"

namespace tessera::report {
namespace {

static_assert(std::endian::native == std::endian::little, "records and floats are little-endian");

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

template <typename Value>
void append_bytes(std::string& out, Value value) {
  const auto bytes = std::bit_cast<std::array<char, sizeof(Value)>>(value);
  out.append(bytes.data(), bytes.size());
}

/// A protobuf message under construction (protobuf.dev, "Encoding"). Zero is written, too: it does
/// no harm.
class Message {
 public:
  Message& integer(int field, int64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& number(int field, double value) {
    varint(static_cast<uint64_t>(field) << 3 | 1);
    append_bytes(bytes_, value);
    return *this;
  }
  Message& single(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    append_bytes(bytes_, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

enum class ValueType { text = 1, boolean = 2, number = 3 };  // api.proto: DataType

ValueType type_of(const HyperParameter& value) {
  if (std::holds_alternative<bool>(value)) return ValueType::boolean;
  return std::holds_alternative<double>(value) ? ValueType::number : ValueType::text;
}

/// google.protobuf.Value
Message value_message(const HyperParameter& value) {
  Message message;
  if (const auto* number = std::get_if<double>(&value)) message.number(2, *number);
  if (const auto* text = std::get_if<std::string>(&value)) message.text(3, *text);
  if (const auto* boolean = std::get_if<bool>(&value)) message.integer(4, *boolean);
  return message;
}

/// An Event whose one summary carries `data` (HParamsPluginData) as metadata and an empty tensor as
/// value.
std::string hparams_event(std::string_view tag, const Message& data) {
  const Message plugin = Message().text(1, "hparams").text(2, data.bytes());
  const Message metadata = Message().message(1, plugin);
  const Message shape = Message().message(2, Message().integer(1, 0));  // one dimension, of size 0
  const Message tensor = Message().integer(1, 1).message(2, shape);     // DT_FLOAT
  const Message value = Message().text(1, tag).message(8, tensor).message(9, metadata);
  return Message().number(1, wall_time()).message(5, Message().message(1, value)).bytes();
}

Message experiment_message(const HyperParameters& values, const std::vector<std::string>& metrics) {
  Message experiment;
  experiment.number(3, wall_time());
  for (const auto& [name, value] : values) {
    experiment.message(4, Message().text(1, name).integer(4, static_cast<int64_t>(type_of(value))));
  }
  for (const auto& tag : metrics) {
    experiment.message(5, Message().message(1, Message().text(2, tag)));
  }
  return experiment;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::string tf_record(std::string_view data) {
  const auto masked = [](std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
  };
  std::string record;
  append_bytes(record, static_cast<uint64_t>(data.size()));
  append_bytes(record, masked(record));
  record += data;
  append_bytes(record, masked(data));
  return record;
}

std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars) {
    summary.message(1, Message().text(1, tag).single(2, static_cast<float>(value)));
  }
  return Message().number(1, wall_time).integer(2, step).message(5, summary).bytes();
}

EventWriter::EventWriter(const SinkOptions& options) {
  make_folder(options.run_dir);
  const double now = wall_time();
  for (int attempt = 0; fd_ < 0; ++attempt) {
    path_ =
        options.run_dir / fmt::format("events.out.tfevents.{}.{}.{}.{}", static_cast<int64_t>(now),
                                      host_name(), ::getpid(), attempt);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) system_error(path_.string() + ": cannot be written");
  }
  write(Message().number(1, now).text(3, "brain.Event:2").bytes());
}

EventWriter::~EventWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void EventWriter::write(std::string_view event) {
  if (!write_all(fd_, tf_record(event))) system_error(path_.string() + ": cannot be written");
}

void EventWriter::scalars(int64_t step, std::span<const Scalar> scalars) {
  write(scalar_event(wall_time(), step, scalars));
}

void EventWriter::hyper_parameters(const HyperParameters& values) {
  const Message experiment = experiment_message(values, {"train/loss", "validation/loss"});
  write(hparams_event("_hparams_/experiment", Message().integer(1, 0).message(2, experiment)));
  Message session;
  for (const auto& [name, value] : values) {
    session.message(1, Message().text(1, name).message(2, value_message(value)));  // map entry
  }
  session.number(5, wall_time());
  write(hparams_event("_hparams_/session_start_info", Message().integer(1, 0).message(3, session)));
}

void EventWriter::finish(bool success) {
  const Message end = Message().integer(1, success ? 1 : 2).number(2, wall_time());
  write(hparams_event("_hparams_/session_end_info", Message().integer(1, 0).message(4, end)));
}

}  // namespace tessera::report
