// Byte strings of any size on drives, read again in about the reverse order: what a forward leaves for its backward.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tessera/offload/buffers.h"

namespace tessera::offload {

/// Strings go to the drives while the caller goes on. Reading one begins to read those put just before it, and what is
/// still in memory is not read from the drive. Memory: `host_memory`, whatever is put. Room on the drives grows to what
/// lies there at a time and is reused. Any thread may call.
class StoredStack {
 public:
  /// Not heeding `options.buffers`; with smaller blocks where host_memory holds not three. UserError: it holds not
  /// three pages; and as Space.
  explicit StoredStack(const StorageOptions& options);

  /// A string there, until this is destroyed: no later than the stack. Move-only.
  class Entry {
   public:
    Entry(Entry&& other) noexcept : stack_(std::exchange(other.stack_, nullptr)), id_(other.id_) {}
    Entry& operator=(Entry&&) = delete;
    ~Entry() {
      if (stack_ != nullptr) stack_->drop(id_);
    }

   private:
    friend class StoredStack;
    Entry(StoredStack* stack, uint64_t id) : stack_(stack), id_(id) {}

    StoredStack* stack_;
    uint64_t id_;
  };

  /// The pieces one after the other. UserError: a drive has no room (needed beside free). SystemError: the drive.
  Entry put(std::span<const std::span<const std::byte>> pieces);

  /// The string of `entry`, in pieces of any sizes that are together as long; as often as wished. SystemError: the
  /// drive.
  void read(const Entry& entry, std::span<const std::span<std::byte>> pieces);

  int64_t memory_bytes() const { return buffers_.memory_bytes(); }
  int64_t most_bytes() const { return most_bytes_; }  ///< of all strings at a time, so far
  const Space& space() const { return buffers_.space(); }

 private:
  struct String {
    int64_t bytes = 0;
    std::vector<int64_t> places;  // in the space, one for each part
    bool was_read = false;
  };
  /// A place that is not used any more but by a transfer that is under way.
  struct Leaving {
    int64_t place = 0;
    Space::Ticket transfer;
  };

  Stretch stretch_of(const String& string, size_t part) const;
  std::vector<Stretch> coming_after(uint64_t id, size_t part) const;
  int64_t free_place();
  void free_those_left();
  void drop(uint64_t id);

  std::mutex mutex_;
  int64_t part_bytes_;
  std::map<uint64_t, String> strings_;  // by order of put()
  std::atomic<uint64_t> last_id_ = 0;
  std::set<int64_t>
      free_;  // places; the lowest is taken, so that neighbours come one after the other
  std::vector<Leaving> leaving_;
  int64_t bytes_ = 0;
  std::atomic<int64_t> most_bytes_ = 0;
  Buffers buffers_;
};

}  // namespace tessera::offload
