// Event files for TensorBoard: https://www.tensorflow.org/tensorboard
// Records: tensorflow/core/lib/io/record_writer.h. Messages:
// tensorboard/compat/proto/{event,summary,tensor}.proto and
// tensorboard/plugins/hparams/{plugin_data,api}.proto. Five small messages do not pay for a
// protobuf library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/report/sink.h"

namespace tessera::report {

/// CRC-32C (Castagnoli, polynomial 0x1EDC6F41; RFC 3720, appendix B.4): 0xE3069283 for "123456789".
/// Table-driven, some 400 MB/s.
uint32_t crc32c(std::string_view bytes);

/// One TFRecord: length (8 bytes), masked CRC of the length (4), `data`, masked CRC of the data
/// (4), little-endian. mask(crc) = rotate_right(crc, 15) + 0xA282EAD8.
std::string tf_record(std::string_view data);

/// A serialized Event of scalars at one step; `wall_time` in seconds since 1970.
std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars);

/// Writes run_dir/events.out.tfevents.TIME.HOST.PID.N (a new file each time, so a resumed
/// run adds one). An event is one write and can be read when the call returns. One writer per run:
/// rank 0.
class EventWriter : public Sink {
 public:
  /// Makes the folder. Throws SystemError if the file cannot be written, as every call below.
  explicit EventWriter(const SinkOptions& options);
  /// Without `finish` the HPARAMS tab shows the run as running.
  ~EventWriter() override;

  void scalars(int64_t step, std::span<const Scalar> scalars) override;

  /// Shows the run in the HPARAMS tab, with train/loss and validation/loss as its results.
  void hyper_parameters(const HyperParameters& values) override;

  void finish(bool success) override;

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(std::string_view event);

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace tessera::report
