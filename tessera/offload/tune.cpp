#include "tessera/offload/tune.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tessera/base/page_buffer.h"
#include "tessera/offload/space.h"

namespace tessera::offload {
namespace {

constexpr int kBuffers = 3;  // as a run has one that is read, one at work, one that is written

/// GB/s of `bytes` that `start(offset, buffer)` moves buffer by buffer.
template <typename Start>
double speed(Space& space, const PageBuffer& memory, const Start& start) {
  const int64_t bytes = space.bytes(), each = std::ssize(memory.bytes()) / kBuffers;
  Space::Ticket tickets[kBuffers];
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t offset = 0, i = 0; offset < bytes; offset += each, ++i) {
    auto& ticket = tickets[i % kBuffers];
    space.wait(ticket);
    const auto room = memory.bytes().subspan(static_cast<size_t>(i % kBuffers * each),
                                             static_cast<size_t>(std::min(each, bytes - offset)));
    ticket = start(offset, room);
  }
  for (const auto& ticket : tickets) space.wait(ticket);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(bytes) / 1e9 / seconds.count();
}

}  // namespace

TuneResult tune(const TuneOptions& options) {
  constexpr int64_t kBufferBytes = int64_t{64} << 20;
  TuneResult result;
  const PageBuffer memory(kBuffers * kBufferBytes);
  std::memset(memory.bytes().data(), 1, memory.bytes().size());
  double least = 0;
  for (const int64_t block : options.block_bytes) {
    for (const int depth : options.queue_depths) {
      const int64_t bytes = (options.bytes + block - 1) / block * block;
      Space space(bytes, {.paths = {options.folder},
                          .block_bytes = block,
                          .queue_depth = depth,
                          .any_file_system = options.any_file_system});
      TuneRow row{.block_bytes = block, .queue_depth = depth};
      row.write_gb = speed(space, memory, [&](int64_t offset, std::span<std::byte> data) {
        return space.write(offset, data);
      });
      row.read_gb = speed(space, memory, [&](int64_t offset, std::span<std::byte> data) {
        return space.read(offset, data);
      });
      const double seconds = 1 / row.read_gb + 1 / row.write_gb;
      if (result.rows.empty() || seconds < least) {
        least = seconds;
        result.best = result.rows.size();
      }
      result.rows.push_back(row);
      result.way = space.way();
      result.notes = space.notes();
    }
  }
  return result;
}

}  // namespace tessera::offload
