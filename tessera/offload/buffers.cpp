#include "tessera/offload/buffers.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tessera::offload {

int64_t parts_in_memory(int64_t stored_bytes, int64_t part_bytes, int64_t most) {
  // Enough of them for one that is read and one that is written.
  constexpr int64_t kLeast = 4;
  const int64_t for_all = part_bytes == 0 ? 0 : (stored_bytes + part_bytes - 1) / part_bytes;
  return std::min(most, std::max(kLeast, for_all));
}

Buffers::Buffers(int64_t space_bytes, const SpaceOptions& options, int64_t count,
                 int64_t buffer_bytes)
    : buffer_bytes_(buffer_bytes),
      memory_(count * buffer_bytes),
      buffers_(static_cast<size_t>(count)),
      space_(space_bytes, options) {}

Buffers::Buffer* Buffers::find(const Stretch& stretch) {
  const auto found = std::ranges::find(buffers_, std::optional(stretch), &Buffer::holds);
  return found == buffers_.end() ? nullptr : &*found;
}

Buffers::Buffer& Buffers::oldest() {
  return *std::ranges::min_element(buffers_, {}, &Buffer::last_use);
}

std::span<std::byte> Buffers::memory_of(const Buffer& buffer, const Stretch& stretch) const {
  const auto index = static_cast<size_t>(&buffer - buffers_.data());
  return memory_.bytes().subspan(index * static_cast<size_t>(buffer_bytes_),
                                 static_cast<size_t>(stretch.bytes));
}

/// The write of a stretch whose buffer is another's already, while it is under way.
Space::Ticket Buffers::leaving(const Stretch& stretch) const {
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.leaving == stretch && space_.is_writing(buffer.leaves);
  });
  return found == buffers_.end() ? nullptr : found->leaves;
}

/// Makes a buffer the stretch's, whose bytes are still to come.
void Buffers::give(Buffer& buffer, const Stretch& stretch) {
  space_.wait(buffer.transfer);  // a write of what it held
  buffer.transfer.reset();
  space_.wait(leaving(stretch));  // what is on the drive is to be its newest
  buffer.holds = stretch;
  buffer.last_use = ++clock_;
}

std::span<std::byte> Buffers::bring(const Stretch& stretch) {
  auto* buffer = find(stretch);
  if (buffer == nullptr) {
    buffer = &oldest();
    give(*buffer, stretch);
    buffer->transfer = space_.read(stretch.begin, memory_of(*buffer, stretch));
  }
  space_.wait(buffer->transfer);
  buffer->transfer.reset();
  buffer->last_use = ++clock_;
  return memory_of(*buffer, stretch);
}

std::span<std::byte> Buffers::room_for(const Stretch& stretch) {
  if (find(stretch) == nullptr) give(oldest(), stretch);
  return bring(stretch);
}

void Buffers::write(const Stretch& stretch) {
  auto* buffer = find(stretch);
  if (buffer == nullptr) throw std::logic_error("offload: what is written was brought before");
  space_.wait(buffer->transfer);
  buffer->transfer = space_.write(stretch.begin, memory_of(*buffer, stretch));
}

void Buffers::let_go(const Stretch& stretch) {
  if (auto* buffer = find(stretch)) buffer->last_use = 0;
}

Space::Ticket Buffers::drop(const Stretch& stretch) {
  auto* buffer = find(stretch);
  if (buffer == nullptr) return leaving(stretch);
  buffer->last_use = 0;
  buffer->holds.reset();
  return buffer->transfer;
}

void Buffers::read_ahead(std::span<const Stretch> coming) {
  for (const auto& next : coming.first(std::min(coming.size(), most_ahead()))) {
    if (auto* there = find(next)) {
      there->last_use = ++clock_;
      continue;
    }
    auto& buffer = oldest();
    const bool is_written = space_.is_writing(buffer.transfer);
    if (leaving(next) || !(is_written || space_.is_done(buffer.transfer))) return;
    if (is_written) {
      buffer.leaving = buffer.holds;
      buffer.leaves = std::exchange(buffer.transfer, nullptr);
    }
    give(buffer, next);
    buffer.transfer =
        space_.read(next.begin, memory_of(buffer, next), is_written ? buffer.leaves : nullptr);
  }
}

void Buffers::settle() {
  for (auto& buffer : buffers_) {
    space_.wait(buffer.transfer);
    buffer.transfer.reset();
  }
}

void Buffers::forget() {
  for (auto& buffer : buffers_) buffer.holds.reset();
}

}  // namespace tessera::offload
