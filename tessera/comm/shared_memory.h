// Collectives of the ranks of one machine, through memory that they all map.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/file_descriptor.h"
#include "tessera/comm/call.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {

/// Note [Shared memory]. Tensors pass through small slots of one anonymous segment (memfd: it has
/// no name, so nothing is left behind), a chunk at a time, so that a slot is still in cache when a
/// peer reads it: a rank writes the parts of a chunk that others own, adds up its own part from all
/// ranks' slots, and reads the parts that others added up. Each rank has two lanes (parts, results)
/// of two slots: while a chunk is read the next is written. A lane has two counters per rank,
/// `posted` and `done`, on which waiting ranks sleep (futex): no core is burned. Memory traffic of
/// an all-reduce of B bytes is about 2 B per rank, through sockets some 5 B and the kernel's work.
/// Parts are added in the order of ranks: the same bits in every run, for any chunking. Every rank
/// writes down which call it is in; whoever waits for a peer, or reads its slot, compares. All
/// ranks raise their counters in the same order. So the sum of a rank's says how far it has come,
/// and the rank that is furthest behind is the one that all others wait for, directly or not. The
/// first rank to give up writes down whom it missed: all give the same reason.
class SharedMemory {
 public:
  using GatherBytes = std::function<std::vector<std::string>(const std::string&)>;

  /// Collective; nullptr on all ranks unless all are on one host, see each other's processes and
  /// can map the segment. `ranks`: the group's, as the run counts them, for errors; `rank`: this
  /// one's place among them. `gather`: all ranks' strings in order, by other means.
  static std::unique_ptr<SharedMemory> make(int rank, const std::vector<int>& ranks,
                                            const GatherBytes& gather);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// What a rank sends, by receiver.
  using Parts = std::vector<std::span<const std::byte>>;

  /// What the functions below are called for from here on, until the next begin().
  void begin(const Call& call);

  /// All block, and throw MissingPeers when a peer has died (noticed within 20 ms), has given up,
  /// or the deadline passes, std::runtime_error when one is in another call (on both ranks, both
  /// calls are named).
  /// Counts are elements, sizes bytes. Every one of them waits for every peer, even for 0 bytes.
  void all_reduce(ReduceOp op, at::ScalarType dtype, void* data, int64_t count,
                  const Deadline& deadline);
  void reduce_scatter(ReduceOp op, at::ScalarType dtype, void* output, const void* input,
                      int64_t count, const Deadline& deadline);  ///< count: of the output
  void all_gather(std::span<void* const> outputs, std::span<const int64_t> sizes, const void* input,
                  const Deadline& deadline);
  void scatter(void* output, const void* input, int64_t part_bytes, int root,
               const Deadline& deadline);  ///< input: of the root
  /// outputs[r] = rank r's inputs[this rank]; `longest`: the most bytes of one of all ranks' parts.
  void all_to_all(std::span<const std::span<std::byte>> outputs, const Parts& inputs,
                  int64_t longest, const Deadline& deadline);
  void broadcast(void* data, int64_t bytes, int root, const Deadline& deadline);

  /// What is under way and whatever comes later fails, on every rank. From any thread.
  void give_up();

  /// The ranks of the group that are furthest behind this one; none if none is behind. From any
  /// thread.
  std::vector<int> furthest_behind() const;

  /// Memory that this rank has mapped and used: all ranks' slots of the lanes used so far.
  int64_t used_bytes() const;

 private:
  static constexpr int64_t kSlotBytes = int64_t{256} << 10;
  static constexpr int kSlots = 2;  ///< of a lane and rank
  enum Lane { kParts, kResults, kLanes };
  struct Header;
  struct Peer;

  enum class Fault : uint32_t { none, late, ended };

  SharedMemory(int rank, const std::vector<int>& ranks, int memory_fd);

  /// output(begin, length, parts): what to do with this rank's part of a chunk, given where every
  /// rank's copy of it lies. `length` is that of the longest part.
  using Use = std::function<void(int64_t begin, int64_t length, std::span<const void* const>)>;
  /// Every rank's parts to their owners, a chunk at a time, until `longest` bytes of each were
  /// handed on; parts may be shorter. `unit`: no chunk ends inside so many bytes.
  void distribute(const Parts& inputs, int64_t longest, int64_t unit, const Use& use,
                  const Deadline& deadline);
  Parts even_parts(const void* input, int64_t part_bytes) const;
  void barrier(const Deadline& deadline);

  std::byte* slot(int rank, Lane lane, uint32_t round) const;
  std::byte* open_slot(Lane lane,
                       const Deadline& deadline);  ///< this rank's next slot, free to write
  void post(Lane lane);
  void await(Lane lane, int peer, uint32_t round, const Deadline& deadline);
  void finish(Lane lane, uint32_t round);
  void compare_calls(int peer) const;
  void wait_until(std::atomic<uint32_t>& counter, uint32_t target, int peer,
                  const Deadline& deadline);
  void check_given_up() const;
  void give_up_on(const std::vector<int>& peers, Fault fault);
  std::vector<int> with_fault(Fault fault) const;
  /// Whatever goes wrong in it, all ranks hear of.
  template <typename Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (...) {
      give_up();
      throw;
    }
  }

  int rank_;
  int size_;
  std::vector<int> ranks_;
  size_t mapped_bytes_;
  Header* header_;
  std::vector<FileDescriptor> processes_;  // of the other ranks
  uint32_t rounds_[kLanes] = {};           // begun on each lane, counted alike by all ranks
  uint32_t sequence_ = 0;                  // of the call, counted alike by all ranks
  Call call_;
};

}  // namespace tessera::comm
