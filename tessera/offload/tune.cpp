#include "tessera/offload/tune.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "tessera/base/page_buffer.h"
#include "tessera/offload/space.h"

namespace tessera::offload {
namespace {

constexpr int kBuffers = 3;  // as a run has one that is read, one at work, one that is written

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Memory through which a space's bytes go.
PageBuffer buffers_for(int64_t block_bytes, int64_t bytes, int64_t memory_bytes) {
  constexpr int64_t kBufferBytes = int64_t{64} << 20;  // beyond that nothing is gained
  const int64_t each = std::min({kBufferBytes, memory_bytes / kBuffers, bytes});
  PageBuffer memory(kBuffers * std::max(block_bytes, each / block_bytes * block_bytes));
  std::memset(memory.bytes().data(), 1, memory.bytes().size());
  return memory;
}

/// Seconds in which `start(offset, buffer)` moves bytes [begin, end), buffer by buffer.
template <typename Start>
double seconds_of(Space& space, const PageBuffer& memory, int64_t begin, int64_t end,
                  const Start& start) {
  const int64_t each = std::ssize(memory.bytes()) / kBuffers;
  Space::Ticket tickets[kBuffers];
  const auto clock = std::chrono::steady_clock::now();
  for (int64_t offset = begin, i = 0; offset < end; offset += each, ++i) {
    auto& ticket = tickets[i % kBuffers];
    space.wait(ticket);
    const auto room = memory.bytes().subspan(static_cast<size_t>(i % kBuffers * each),
                                             static_cast<size_t>(std::min(each, end - offset)));
    ticket = start(offset, room);
  }
  for (const auto& ticket : tickets) space.wait(ticket);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - clock).count();
}

double speed(int64_t bytes, double seconds) { return static_cast<double>(bytes) / 1e9 / seconds; }

/// GB/s of `pass`, which takes so many seconds for so many bytes, over several: no drive is always as fast.
template <typename Pass>
double sustained(int64_t bytes, const Pass& pass) {
  constexpr double kLongEnough = 0.5;
  constexpr int64_t kMostPasses = 8;
  double seconds = 0;
  int64_t passes = 0;
  for (; seconds < kLongEnough && passes < kMostPasses; ++passes) seconds += pass();
  return speed(passes * bytes, seconds);
}

}  // namespace

Speed measure(const SpaceOptions& given, int64_t bytes, int64_t memory_bytes) {
  // A run's parts may be less than a block, and so may its memory.
  auto options = given;
  options.block_bytes = std::clamp(memory_bytes / 2 / kBuffers / kPageBytes * kPageBytes,
                                   int64_t{kPageBytes}, given.block_bytes);
  const int64_t block = options.block_bytes, half = round_up(bytes, block);
  Space space(2 * half, options);
  // Of the half, so that what is read is not what is being written.
  const auto memory = buffers_for(block, half, memory_bytes / 2);
  const auto other = buffers_for(block, half, memory_bytes / 2);
  const auto write = [&](int64_t offset, std::span<std::byte> data) {
    return space.write(offset, data);
  };
  const auto read = [&](int64_t offset, std::span<std::byte> data) {
    return space.read(offset, data);
  };
  Speed result;
  result.write = sustained(half, [&] { return seconds_of(space, memory, 0, half, write); });
  result.read = sustained(half, [&] { return seconds_of(space, memory, 0, half, read); });
  const int64_t each = std::ssize(other.bytes()) / kBuffers;
  result.both = sustained(half, [&] {
    std::vector<Space::Ticket> writes;
    return seconds_of(space, memory, 0, half, [&](int64_t offset, std::span<std::byte> data) {
      const auto index = offset / each;
      if (index >= kBuffers) space.wait(writes[static_cast<size_t>(index - kBuffers)]);
      writes.push_back(space.write(
          half + offset,
          other.bytes().subspan(static_cast<size_t>(index % kBuffers * each), data.size())));
      auto ticket = space.read(offset, data);
      if (offset + std::ssize(data) == half) {
        for (const auto& last : writes) space.wait(last);
      }
      return ticket;
    });
  });
  const auto counters = space.counters();
  result.moved_bytes = counters.read_bytes + counters.written_bytes;
  return result;
}

TuneResult tune(const TuneOptions& options) {
  TuneResult result;
  double least = 0;
  for (const int64_t block : options.block_bytes) {
    for (const int depth : options.queue_depths) {
      const int64_t bytes = round_up(options.bytes, block);
      const auto memory = buffers_for(block, bytes, /*memory_bytes=*/INT64_MAX);
      Space space(bytes, {.paths = {options.folder},
                          .block_bytes = block,
                          .queue_depth = depth,
                          .any_file_system = options.any_file_system});
      TuneRow row{.block_bytes = block, .queue_depth = depth};
      const auto moved = [&](const auto& start) {
        return speed(bytes, seconds_of(space, memory, 0, bytes, start));
      };
      row.write_gb = moved(
          [&](int64_t offset, std::span<std::byte> data) { return space.write(offset, data); });
      row.read_gb = moved(
          [&](int64_t offset, std::span<std::byte> data) { return space.read(offset, data); });
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
