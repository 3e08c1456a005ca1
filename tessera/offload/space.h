// Room on drives: bytes at offsets, read and written while the caller goes on.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tessera/offload/queue.h"
#include "tessera/offload/scratch_file.h"

namespace tessera::offload {

struct SpaceOptions {
  std::vector<std::filesystem::path> paths;  ///< folders, one a drive: blocks go to them in turn
  int64_t block_bytes = int64_t{1} << 20;    ///< of one read or write; a multiple of kPageBytes
  int queue_depth = 32;                      ///< reads and writes at a time
  bool any_file_system = false;              ///< in memory or over a network, too
  double timeout_seconds = 600;              ///< of each read and write
  int rank = 0;                              ///< named in errors
  bool use_uring = true;                     ///< else threads
  /// Stands between: for tests.
  std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> wrap_queue;
};

/// What was moved so far, and how long somebody waited for it.
struct SpaceCounters {
  int64_t read_bytes = 0, written_bytes = 0;
  double wait_seconds = 0;

  void add(const SpaceCounters& others) {
    read_bytes += others.read_bytes;
    written_bytes += others.written_bytes;
    wait_seconds += others.wait_seconds;
  }
  SpaceCounters operator-(const SpaceCounters& before) const {
    return {.read_bytes = read_bytes - before.read_bytes,
            .written_bytes = written_bytes - before.written_bytes,
            .wait_seconds = wait_seconds - before.wait_seconds};
  }
};

/// `bytes` bytes in scratch files, one a folder. A thread of its own keeps `queue_depth` reads and
/// writes under way. What was never written is zero and is not read. Each block's checksum (XXH3) is
/// kept in memory when it is written and compared when it is read: 8 bytes a block.
///
/// A read or write that fails, stays short (after some tries) or takes longer than the timeout, and
/// a block that is not what was written, end it: every call from then on throws SystemError, which
/// names rank, offset and folder. Any thread may call.
///
/// While somebody waits for a space, others of the process that nobody waits for begin no reads: what is
/// needed comes before what is read ahead.
class Space {
 public:
  /// Throws as ScratchFile does.
  Space(int64_t bytes, SpaceOptions options);
  ~Space();  ///< waits for what is under way
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  /// Makes it as large, in the thread that asks for bytes(). Throws as ScratchFile::grow does.
  void grow(int64_t bytes);

  /// A read or write of several blocks, until wait().
  struct Transfer;
  using Ticket = std::shared_ptr<Transfer>;

  /// Begin at `offset`, a multiple of block_bytes; whole pages in memory that begins at one and
  /// stays until wait(). A block is read as long as it was written. What is under way may not
  /// overlap.
  /// A read may begin after another transfer: one that leaves its memory.
  Ticket read(int64_t offset, std::span<std::byte> data, Ticket after = {});
  Ticket write(int64_t offset, std::span<const std::byte> data);
  void wait(const Ticket& ticket);              ///< null: nothing to wait for
  bool is_done(const Ticket& ticket) const;     ///< wait() would not wait
  bool is_writing(const Ticket& ticket) const;  ///< a write that is not done
  bool is_waited_for() const;

  /// Bytes with which the block at `offset` was written last; 0: it never was.
  int64_t bytes_of_block(int64_t offset) const;

  const SpaceOptions& options() const { return options_; }
  int64_t bytes() const { return bytes_; }
  SpaceCounters counters() const;
  /// What works otherwise than it should: "io_uring is refused (..): threads", ..
  const std::vector<std::string>& notes() const { return notes_; }
  std::string way() const;  ///< "io_uring, direct"

 private:
  using Clock = std::chrono::steady_clock;
  struct Piece {
    Ticket transfer;
    int64_t block = 0, done = 0, bytes = 0;
    std::byte* data = nullptr;
    Clock::time_point started;
    int tries = 0;
  };
  struct Block {
    uint64_t checksum = 0;
    int64_t bytes = 0;
  };

  int64_t of_a_folder(int64_t bytes) const;
  Ticket begin(int64_t offset, std::byte* data, int64_t bytes, bool writes, Ticket after);
  void work();
  void start(uint64_t tag, Piece& piece);
  void finish(const Outcome& outcome);
  void check_deadlines();
  void fail(const Piece& piece, const std::string& why);
  void fail(std::string why);
  bool may_read() const;
  std::optional<Piece> next_waiting();
  bool fill_with_zeros(const Piece& piece);
  const ScratchFile& file_of(int64_t block) const;
  int64_t offset_in_file(int64_t block) const;

  SpaceOptions options_;
  int64_t bytes_ = 0;
  std::vector<ScratchFile> files_;
  std::vector<std::string> notes_;
  std::unique_ptr<Queue> queue_;

  mutable std::mutex mutex_;
  std::condition_variable asked_, ended_;
  std::deque<Piece> reads_, writes_;     // that wait
  std::map<uint64_t, Piece> under_way_;  // by tag
  uint64_t next_tag_ = 0;
  int num_waiting_ = 0;  // in wait()
  std::vector<Block> blocks_;
  SpaceCounters counters_;
  std::string failure_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera::offload
