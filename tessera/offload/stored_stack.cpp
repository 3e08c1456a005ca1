#include "tessera/offload/stored_stack.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <stdexcept>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera::offload {
namespace {

/// Parts in memory: enough to keep a drive busy, few enough to look through at each.
constexpr int64_t kMostParts = 64;
/// At least: one at work, one that is written, the others are read ahead.
constexpr int64_t kLeastParts = 3;
/// By which the space grows: a few calls of the system in all, and little room that is not used.
constexpr int64_t kPartsOfGrowth = 16;

/// With blocks of which the memory holds enough.
StorageOptions fitting(StorageOptions options) {
  const int64_t most = options.host_memory / kLeastParts / kPageBytes * kPageBytes;
  if (most == 0) {
    user_error("host_memory: expected at least {}, got {}", format_bytes(kLeastParts * kPageBytes),
               format_bytes(options.host_memory));
  }
  options.space.block_bytes = std::min(options.space.block_bytes, most);
  return options;
}

/// Whole blocks.
int64_t bytes_of_part(const StorageOptions& fitting) {
  const int64_t block = std::max(kPageBytes, fitting.space.block_bytes);  // Space sees to it
  return std::max<int64_t>(1, fitting.host_memory / kMostParts / block) * block;
}

/// Calls use(some of a piece, its place in the range) for the range [begin, begin + bytes) of all pieces together.
template <typename Byte, typename Use>
void for_each_piece(std::span<const std::span<Byte>> pieces, int64_t begin, int64_t bytes,
                    const Use& use) {
  int64_t start = 0, done = 0;  // the former: of the piece
  for (const auto& piece : pieces) {
    const int64_t at = begin + done - start;
    start += std::ssize(piece);
    if (done == bytes || at >= std::ssize(piece)) continue;
    const auto some =
        piece.subspan(static_cast<size_t>(at),
                      static_cast<size_t>(std::min(std::ssize(piece) - at, bytes - done)));
    use(some, done);
    done += std::ssize(some);
  }
}

template <typename Byte>
int64_t bytes_of(std::span<const std::span<Byte>> pieces) {
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += std::ssize(piece);
  return bytes;
}

}  // namespace

StoredStack::StoredStack(const StorageOptions& options)
    : part_bytes_(bytes_of_part(fitting(options))),
      buffers_(0, fitting(options).space, options.host_memory / part_bytes_, part_bytes_) {}

Stretch StoredStack::stretch_of(const String& string, size_t part) const {
  const int64_t begin = static_cast<int64_t>(part) * part_bytes_;
  return {.begin = string.places[part],
          .bytes = whole_pages(std::min(part_bytes_, string.bytes - begin))};
}

StoredStack::Entry StoredStack::put(std::span<const std::span<const std::byte>> pieces) {
  Entry entry(this, ++last_id_);  // before the lock, since what fails below drops it
  const std::lock_guard lock(mutex_);
  auto& string = strings_[entry.id_];
  const int64_t bytes = bytes_of(pieces);
  while (string.bytes < bytes) {
    const int64_t begin = string.bytes, own = std::min(part_bytes_, bytes - begin);
    string.places.push_back(free_place());
    string.bytes += own, bytes_ += own;
    const auto stretch = stretch_of(string, string.places.size() - 1);
    const auto memory = buffers_.room_for(stretch);
    for_each_piece(pieces, begin, own, [&](std::span<const std::byte> some, int64_t done) {
      std::memcpy(memory.data() + done, some.data(), some.size());
    });
    std::memset(memory.data() + own, 0, memory.size() - static_cast<size_t>(own));
    buffers_.write(stretch);
  }
  most_bytes_ = std::max(most_bytes_.load(), bytes_);
  return entry;
}

void StoredStack::read(const Entry& entry, std::span<const std::span<std::byte>> pieces) {
  const std::lock_guard lock(mutex_);
  auto& string = strings_.at(entry.id_);
  if (bytes_of(pieces) != string.bytes) {
    throw std::logic_error("offload: a string is read as long as it was put");
  }
  string.was_read = true;
  // What was put last is in memory most likely: it comes first, before others take its buffers.
  for (size_t part = string.places.size(); part-- > 0;) {
    const auto stretch = stretch_of(string, part);
    const auto memory = buffers_.bring(stretch);
    const int64_t begin = static_cast<int64_t>(part) * part_bytes_;
    for_each_piece(pieces, begin, std::min(part_bytes_, string.bytes - begin),
                   [&](std::span<std::byte> some, int64_t done) {
                     std::memcpy(some.data(), memory.data() + done, some.size());
                   });
    buffers_.let_go(stretch);
    buffers_.read_ahead(coming_after(entry.id_, part));
  }
}

/// The parts that may be read ahead: those before this one, of the string itself and of the strings put before it.
std::vector<Stretch> StoredStack::coming_after(uint64_t id, size_t part) const {
  std::vector<Stretch> coming;
  const auto own = strings_.find(id);
  const auto add = [&](const String& string, size_t end) {
    while (end-- > 0 && coming.size() < buffers_.most_ahead())
      coming.push_back(stretch_of(string, end));
  };
  add(own->second, part);
  for (auto next = std::make_reverse_iterator(own);
       next != strings_.rend() && coming.size() < buffers_.most_ahead(); ++next) {
    if (!next->second.was_read) add(next->second, next->second.places.size());
  }
  return coming;
}

void StoredStack::free_those_left() {
  std::erase_if(leaving_, [this](const Leaving& left) {
    const bool done = buffers_.space().is_done(left.transfer);
    if (done) free_.insert(left.place);
    return done;
  });
}

/// Waits for a transfer rather than taking more of the drives.
int64_t StoredStack::free_place() {
  free_those_left();
  if (free_.empty() && !leaving_.empty()) {
    buffers_.space().wait(leaving_.front().transfer);
    free_those_left();
  }
  if (free_.empty()) {
    const int64_t begin = buffers_.space().bytes();
    buffers_.space().grow(begin + kPartsOfGrowth * part_bytes_);
    for (int64_t i = 0; i < kPartsOfGrowth; ++i) free_.insert(begin + i * part_bytes_);
  }
  return free_.extract(free_.begin()).value();
}

void StoredStack::drop(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = strings_.find(id);
  if (found == strings_.end()) return;
  const auto& string = found->second;
  for (size_t part = 0; part < string.places.size(); ++part)
    leaving_.push_back({string.places[part], buffers_.drop(stretch_of(string, part))});
  bytes_ -= string.bytes;
  strings_.erase(found);
  free_those_left();
}

}  // namespace tessera::offload
