#include "tessera/comm/shared_memory.h"

#include <c10/core/ScalarType.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "tessera/comm/roll_call.h"

namespace tessera::comm {
namespace {

/// Tells the processor that this thread only waits.
void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr size_t kPageBytes = 4096;
constexpr auto kLivenessPeriod = std::chrono::milliseconds(20);
constexpr int kSpins = 200;  // a peer that runs at the same time answers within microseconds

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec period{0, std::chrono::nanoseconds(kLivenessPeriod).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &period, nullptr, 0);
}

bool reached(uint32_t value, uint32_t target) {  // the counters wrap around
  return static_cast<int32_t>(value - target) >= 0;
}

std::string first_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// Equal on ranks that can share memory: the same running kernel, process namespace and user.
std::string host_key() {
  char pids[64] = {};
  if (readlink("/proc/self/ns/pid", pids, sizeof(pids) - 1) < 0) return {};
  return fmt::format("{} {} {}", first_word("/proc/sys/kernel/random/boot_id"), pids, geteuid());
}

bool all_equal(const std::vector<std::string>& values) {
  return std::ranges::all_of(values, [&](const auto& value) { return value == values[0]; });
}

bool has_ended(const FileDescriptor& process) {
  pollfd query{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&query, 1, 0) == 1;
}

/// Processes of the other ranks (pidfd); empty if one cannot be opened.
std::vector<FileDescriptor> open_processes(const std::vector<std::string>& pids, int rank) {
  std::vector<FileDescriptor> processes;
  for (int r = 0; r < static_cast<int>(pids.size()); ++r) {
    auto& process = processes.emplace_back();
    if (r == rank) continue;
    process = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, std::stoi(pids[r]), 0)));
    if (!process.is_open()) return {};
  }
  return processes;
}

}  // namespace

struct alignas(64) SharedMemory::Peer {
  std::atomic<uint32_t> posted[kLanes];
  std::atomic<uint32_t> done[kLanes];
  std::atomic<Fault> fault;  // why others gave up on this rank
  // The last two calls: no rank is two ahead of another, every call waits for all.
  struct {
    std::atomic<uint64_t> kind, bytes;
    std::atomic<uint32_t> sequence;
  } calls[2];
};

struct SharedMemory::Header {
  alignas(64) std::atomic<int32_t> gave_up;  // 0, or 1 + the first rank that did
  Peer peers[1];                             // one per rank, then the slots

  static size_t bytes(int size) {
    const size_t used = sizeof(Header) + static_cast<size_t>(size) * sizeof(Peer);
    return (used + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
};

std::unique_ptr<SharedMemory> SharedMemory::make(int rank, const std::vector<int>& ranks,
                                                 const GatherBytes& gather) {
  const int size = static_cast<int>(ranks.size());
  const std::string key = host_key();
  const auto keys = gather(key);
  if (key.empty() || !all_equal(keys)) return nullptr;

  const size_t bytes =
      Header::bytes(size) + static_cast<size_t>(size) * kLanes * kSlots * kSlotBytes;
  FileDescriptor segment;
  if (rank == 0) {
    segment = FileDescriptor(memfd_create("tessera", MFD_CLOEXEC));
    if (segment.is_open() && ftruncate(segment.get(), static_cast<off_t>(bytes)) != 0) {
      segment.reset();
    }
  }
  const auto pids = gather(std::to_string(getpid()));
  const auto fds = gather(std::to_string(segment.get()));
  if (rank != 0) {
    const auto path = fmt::format("/proc/{}/fd/{}", pids[0], fds[0]);
    segment = FileDescriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  }
  std::unique_ptr<SharedMemory> memory;
  auto processes = open_processes(pids, rank);
  if (segment.is_open() && !processes.empty()) {
    memory.reset(new SharedMemory(rank, ranks, segment.get()));
    memory->processes_ = std::move(processes);
    if (memory->header_ == nullptr) memory.reset();
  }
  const auto mapped = gather(memory != nullptr ? "mapped" : "failed");
  if (mapped[0] != "mapped" || !all_equal(mapped)) return nullptr;
  return memory;
}

SharedMemory::SharedMemory(int rank, const std::vector<int>& ranks, int memory_fd)
    : rank_(rank),
      size_(static_cast<int>(ranks.size())),
      ranks_(ranks),
      mapped_bytes_(Header::bytes(size_) +
                    static_cast<size_t>(size_) * kLanes * kSlots * kSlotBytes) {
  void* start = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
  header_ = start == MAP_FAILED ? nullptr : static_cast<Header*>(start);  // a new memfd is all zero
}

SharedMemory::~SharedMemory() {
  if (header_ != nullptr) munmap(header_, mapped_bytes_);
}

std::byte* SharedMemory::slot(int rank, Lane lane, uint32_t round) const {
  const int64_t index = (int64_t{rank} * kLanes + lane) * kSlots + round % kSlots;
  return reinterpret_cast<std::byte*>(header_) + Header::bytes(size_) + index * kSlotBytes;
}

void SharedMemory::begin(const Call& call) {
  call_ = call;
  const auto code = call.code();
  auto& mine = header_->peers[rank_].calls[++sequence_ % 2];
  mine.kind.store(code.kind, std::memory_order_relaxed);
  mine.bytes.store(code.bytes, std::memory_order_relaxed);
  mine.sequence.store(sequence_, std::memory_order_release);
}

void SharedMemory::compare_calls(int peer) const {
  const auto& theirs = header_->peers[peer].calls[sequence_ % 2];
  if (theirs.sequence.load(std::memory_order_acquire) != sequence_) return;  // not in it yet
  check_same_call(ranks_[rank_], call_, ranks_[peer],
                  {.kind = theirs.kind.load(std::memory_order_relaxed),
                   .bytes = theirs.bytes.load(std::memory_order_relaxed)});
}

void SharedMemory::wait_until(std::atomic<uint32_t>& counter, uint32_t target, int peer,
                              const Deadline& deadline) {
  for (int i = 0; i < kSpins; ++i) {
    if (reached(counter.load(std::memory_order_acquire), target)) return;
    spin_pause();
  }
  while (true) {
    // Whether the peer has ended is asked before the counter is read: what it did before its end
    // counts.
    const bool ended = has_ended(processes_[peer]);
    const uint32_t seen = counter.load(std::memory_order_acquire);
    if (reached(seen, target)) return;
    for (int r = 0; r < size_; ++r) compare_calls(r);  // a better reason than that one gave up
    check_given_up();                                  // and that a better one than that it ended
    if (ended) give_up_on({peer}, Fault::ended);
    if (deadline.passed()) {
      const auto behind = furthest_behind();
      give_up_on(behind.empty() ? std::vector<int>{peer} : behind, Fault::late);
    }
    check_given_up();
    futex_wait(counter, seen);
  }
}

std::vector<int> SharedMemory::furthest_behind() const {
  const auto position_of = [&](int rank) {
    uint32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      sum += header_->peers[rank].posted[lane].load(std::memory_order_relaxed);
      sum += header_->peers[rank].done[lane].load(std::memory_order_relaxed);
    }
    return sum;
  };
  const uint32_t mine = position_of(rank_);
  int32_t most = 1;
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    const auto behind = static_cast<int32_t>(mine - position_of(r));
    if (behind > most) ranks.clear();
    most = std::max(most, behind);
    if (behind == most) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> SharedMemory::with_fault(Fault fault) const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (header_->peers[r].fault.load() == fault) ranks.push_back(ranks_[r]);
  }
  return ranks;
}

void SharedMemory::check_given_up() const {
  using Why = MissingPeers::Why;
  const int first = header_->gave_up.load();
  if (first == 0) return;
  const int who = ranks_[first - 1];
  if (header_->peers[rank_].fault.load() == Fault::late) {
    throw std::runtime_error(
        fmt::format("rank {} had waited for this rank until the deadline", who));
  }
  if (const auto late = with_fault(Fault::late); !late.empty()) {
    throw MissingPeers(Why::late, late, did_not_come(late));
  }
  if (const auto ended = with_fault(Fault::ended); !ended.empty()) {
    throw MissingPeers(Why::lost, ended, fmt::format("rank {}: the process has ended", ended[0]));
  }
  throw MissingPeers(Why::lost, {who}, fmt::format("rank {}: gave up", who));
}

void SharedMemory::give_up_on(const std::vector<int>& peers, Fault fault) {
  for (const int peer : peers) header_->peers[peer].fault.store(fault);
  give_up();
}

void SharedMemory::give_up() {
  int32_t nobody = 0;
  header_->gave_up.compare_exchange_strong(nobody, rank_ + 1);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < size_; ++r) {
      futex_wake(header_->peers[r].posted[lane]);
      futex_wake(header_->peers[r].done[lane]);
    }
  }
}

std::byte* SharedMemory::open_slot(Lane lane, const Deadline& deadline) {
  const uint32_t round = rounds_[lane];
  for (int r = 0; r < size_; ++r) {  // the slot was last used kSlots rounds ago
    if (r != rank_) {
      wait_until(header_->peers[r].done[lane], round - kSlots + 1, r, deadline);
    }
  }
  return slot(rank_, lane, round);
}

void SharedMemory::post(Lane lane) {
  auto& posted = header_->peers[rank_].posted[lane];
  posted.store(++rounds_[lane], std::memory_order_release);
  futex_wake(posted);
}

void SharedMemory::await(Lane lane, int peer, uint32_t round, const Deadline& deadline) {
  wait_until(header_->peers[peer].posted[lane], round + 1, peer, deadline);
  compare_calls(peer);
}

void SharedMemory::finish(Lane lane, uint32_t round) {
  auto& done = header_->peers[rank_].done[lane];
  done.store(round + 1, std::memory_order_release);
  futex_wake(done);
}

int64_t SharedMemory::used_bytes() const {
  int64_t bytes = static_cast<int64_t>(Header::bytes(size_));
  for (const auto& posted : header_->peers[rank_].posted) {
    if (posted.load(std::memory_order_relaxed) != 0) bytes += size_ * kSlots * kSlotBytes;
  }
  return bytes;
}

}  // namespace tessera::comm
