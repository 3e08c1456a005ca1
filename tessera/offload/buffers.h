// What of a space is in memory: a few stretches, read ahead and written behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/page_buffer.h"
#include "tessera/offload/space.h"

namespace tessera::offload {

struct StorageOptions {
  SpaceOptions space;
  int64_t buffers = 32;                      ///< parts in memory at a time, at least 2
  int64_t host_memory = int64_t{256} << 20;  ///< bytes of all of them
};

/// How many parts of at most `part_bytes` are in memory at a time: `most`, or fewer where all that is stored has
/// fewer.
int64_t parts_in_memory(int64_t stored_bytes, int64_t part_bytes, int64_t most);

/// Bytes of a space that come and go together.
struct Stretch {
  int64_t begin = 0;  ///< a multiple of block_bytes
  int64_t bytes = 0;  ///< whole pages, always as many from there
  bool operator==(const Stretch&) const = default;
};

/// A space and memory for some of its stretches. What was used last stays. For one thread at a time.
class Buffers {
 public:
  /// `count`: at least 2 buffers, each of `buffer_bytes`, whole pages. Throws as Space.
  Buffers(int64_t space_bytes, const SpaceOptions& options, int64_t count, int64_t buffer_bytes);

  /// The stretch in memory, wherever it was. It stays there until the next call but write(). SystemError:
  /// the drive.
  std::span<std::byte> bring(const Stretch& stretch);
  /// The same where all of it will be written: nothing is read.
  std::span<std::byte> room_for(const Stretch& stretch);

  /// Begins to write what bring() or room_for() gave; bring() it again before it is changed again.
  void write(const Stretch& stretch);

  /// The stretch will hardly be asked for again: its buffer is the first that another gets.
  void let_go(const Stretch& stretch);
  /// What it holds is of no use any more; once this is done, its place may be another stretch's.
  Space::Ticket drop(const Stretch& stretch);

  /// Begins to read those of `coming`, the nearest first, that are not there, into buffers that nobody
  /// needs, as soon as what they held is written: one stays for what is at work, one for what is written.
  void read_ahead(std::span<const Stretch> coming);
  /// Stretches that read_ahead() looks at.
  size_t most_ahead() const { return buffers_.size() - 2; }

  /// Waits until nothing is under way: what is on the drives is the newest.
  void settle();
  /// What is in memory is not the newest any more.
  void forget();

  int64_t memory_bytes() const { return std::ssize(memory_.bytes()); }
  Space& space() { return space_; }
  const Space& space() const { return space_; }

 private:
  struct Buffer {
    std::optional<Stretch> holds;
    Space::Ticket transfer;  // that reads or writes it
    int64_t last_use = 0;
    // What it held before, while that is written and the next one waits for its memory.
    std::optional<Stretch> leaving;
    Space::Ticket leaves;
  };

  Buffer* find(const Stretch& stretch);
  Buffer& oldest();
  std::span<std::byte> memory_of(const Buffer& buffer, const Stretch& stretch) const;
  void give(Buffer& buffer, const Stretch& stretch);
  Space::Ticket leaving(const Stretch& stretch) const;

  int64_t buffer_bytes_;
  PageBuffer memory_;
  std::vector<Buffer> buffers_;
  int64_t clock_ = 0;
  Space space_;  // last: its thread uses the memory
};

}  // namespace tessera::offload
