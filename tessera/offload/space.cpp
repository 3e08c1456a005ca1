#include "tessera/offload/space.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/page_buffer.h"

namespace tessera::offload {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr std::chrono::milliseconds kBetweenTurns{1};
constexpr int kMostTries = 8;  // of a block that comes in parts, or not for now

std::atomic<int> waiting_for_any = 0;  // in wait() of all spaces

uint64_t checksum_of(const std::byte* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

}  // namespace

struct Space::Transfer {
  bool writes = false;
  int64_t left = 0;  // pieces
  Ticket after;      // before it none begins
};

Space::Space(int64_t bytes, SpaceOptions options) : options_(std::move(options)), bytes_(bytes) {
  const int64_t block = options_.block_bytes;
  if (block <= 0 || block % kPageBytes != 0) {
    user_error("block_size: expected a multiple of {} bytes, got {}", kPageBytes, block);
  }
  if (options_.paths.empty()) user_error("paths: expected a folder, got none");
  for (const auto& folder : options_.paths) {
    files_.emplace_back(folder, of_a_folder(bytes), options_.any_file_system);
    if (!files_.back().is_direct()) {
      notes_.push_back(
          fmt::format("{}: its file system refuses direct input and output; what is "
                      "moved goes through the page cache",
                      folder.string()));
    }
  }
  blocks_.resize(static_cast<size_t>((bytes + block - 1) / block));
  std::string why;
  if (options_.use_uring) queue_ = make_uring_queue(options_.queue_depth, why);
  if (!why.empty()) notes_.push_back(fmt::format("io_uring is refused ({}): threads", why));
  if (!queue_) queue_ = make_thread_queue(options_.queue_depth);
  if (options_.wrap_queue) queue_ = options_.wrap_queue(std::move(queue_));
  thread_ = std::thread([this] { work(); });
}

Space::~Space() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_all();
  thread_.join();
}

/// Bytes of the file in each folder, where all together hold `bytes`.
int64_t Space::of_a_folder(int64_t bytes) const {
  const int64_t row = std::ssize(options_.paths) * options_.block_bytes;
  return std::max<int64_t>(1, (bytes + row - 1) / row) * options_.block_bytes;
}

void Space::grow(int64_t bytes) {
  for (auto& file : files_) file.grow(of_a_folder(bytes));
  const std::lock_guard lock(mutex_);
  bytes_ = bytes;
  blocks_.resize(static_cast<size_t>((bytes + options_.block_bytes - 1) / options_.block_bytes));
}

Space::Ticket Space::read(int64_t offset, std::span<std::byte> data, Ticket after) {
  return begin(offset, data.data(), std::ssize(data), /*writes=*/false, std::move(after));
}

Space::Ticket Space::write(int64_t offset, std::span<const std::byte> data) {
  return begin(offset, const_cast<std::byte*>(data.data()), std::ssize(data), /*writes=*/true, {});
}

Space::Ticket Space::begin(int64_t offset, std::byte* data, int64_t bytes, bool writes,
                           Ticket after) {
  const int64_t block_bytes = options_.block_bytes;
  if (offset % block_bytes != 0 || bytes % kPageBytes != 0 || offset + bytes > bytes_ ||
      reinterpret_cast<uintptr_t>(data) % kPageBytes != 0) {
    throw std::logic_error("offload: expected whole pages that begin at a block");
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->writes = writes;
  transfer->after = std::move(after);
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw SystemError(failure_);
    for (int64_t done = 0; done < bytes; done += block_bytes) {
      Piece piece{.transfer = transfer,
                  .block = (offset + done) / block_bytes,
                  .done = 0,
                  .bytes = std::min(block_bytes, bytes - done),
                  .data = data + done,
                  .started = {}};
      const auto& block = blocks_[static_cast<size_t>(piece.block)];
      if (!writes && block.bytes != 0 && block.bytes != piece.bytes) {
        throw std::logic_error("offload: a block is read as long as it was written");
      }
      ++transfer->left;
      (writes ? writes_ : reads_).push_back(std::move(piece));
    }
  }
  asked_.notify_one();
  return transfer;
}

void Space::wait(const Ticket& ticket) {
  if (!ticket) return;
  std::unique_lock lock(mutex_);
  const auto begin = Clock::now();
  // Each piece has its deadline; beyond that the thread itself is stuck in the kernel.
  const std::chrono::duration<double> most(2 * options_.timeout_seconds);
  ++num_waiting_, ++waiting_for_any;
  auto heard = std::cv_status::no_timeout;
  while (ticket->left > 0 && failure_.empty() && heard == std::cv_status::no_timeout)
    heard = ended_.wait_for(lock, most);
  --num_waiting_, --waiting_for_any;
  if (heard == std::cv_status::timeout) {
    throw SystemError(fmt::format("rank {}: offload: the system took nothing in {} s",
                                  options_.rank, most.count()));
  }
  counters_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  if (!failure_.empty()) throw SystemError(failure_);
}

bool Space::is_done(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return !ticket || ticket->left == 0;
}

bool Space::is_writing(const Ticket& ticket) const {
  return ticket && ticket->writes && !is_done(ticket);
}

bool Space::is_waited_for() const {
  const std::lock_guard lock(mutex_);
  return num_waiting_ > 0;
}

int64_t Space::bytes_of_block(int64_t offset) const {
  const std::lock_guard lock(mutex_);
  return blocks_[static_cast<size_t>(offset / options_.block_bytes)].bytes;
}

SpaceCounters Space::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::string Space::way() const {
  const bool direct = std::ranges::all_of(files_, &ScratchFile::is_direct);
  return fmt::format("{}, {}", queue_->name(), direct ? "direct" : "through the page cache");
}

const ScratchFile& Space::file_of(int64_t block) const {
  return files_[static_cast<size_t>(block) % files_.size()];
}

int64_t Space::offset_in_file(int64_t block) const {
  return block / static_cast<int64_t>(files_.size()) * options_.block_bytes;
}

/// The thread: starts what waits, hears what ended.
void Space::work() {
  const auto depth = static_cast<size_t>(options_.queue_depth);
  try {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (under_way_.empty()) {
          const auto none_waits = [this] { return reads_.empty() && writes_.empty(); };
          asked_.wait(lock, [&] { return stopping_ || !none_waits(); });
          if (stopping_ && (none_waits() || !failure_.empty())) return;
          if (writes_.empty() && !may_read()) {
            asked_.wait_for(lock, kBetweenTurns);
            continue;  // the queue has nothing that could end
          }
        }
        if (!failure_.empty()) return;
      }
      while (under_way_.size() < depth) {
        auto piece = next_waiting();
        if (!piece) break;
        if (fill_with_zeros(*piece)) continue;
        piece->started = Clock::now();
        const auto tag = next_tag_++;
        start(tag, under_way_.emplace(tag, *std::move(piece)).first->second);
      }
      if (const auto outcome = queue_->next(kBetweenLooks)) {
        finish(*outcome);
      } else {
        check_deadlines();
      }
    }
  } catch (const std::runtime_error& error) {
    fail(fmt::format("rank {}: offload: {}", options_.rank, error.what()));
  }
}

/// Is it this one's turn, or is another waited for?
bool Space::may_read() const { return num_waiting_ > 0 || stopping_ || waiting_for_any == 0; }

/// What is to be started next: where reads and writes wait, of that direction of which fewer are under way, so that both go on at once.
std::optional<Space::Piece> Space::next_waiting() {
  const auto writing = std::ranges::count_if(
      under_way_, [](const auto& entry) { return entry.second.transfer->writes; });
  const std::lock_guard lock(mutex_);
  const auto ready = [](const Piece& piece) {
    auto& after = piece.transfer->after;
    if (after && after->left == 0) after.reset();
    return !after;
  };
  const auto read = may_read() ? std::ranges::find_if(reads_, ready) : reads_.end();
  const bool reads_next = writes_.empty() || 2 * writing >= std::ssize(under_way_);
  auto& waiting = reads_next && read != reads_.end() ? reads_ : writes_;
  const auto next = &waiting == &reads_ ? read : writes_.begin();
  if (next == waiting.end()) return std::nullopt;
  auto piece = std::move(*next);
  waiting.erase(next);
  return piece;
}

/// Is it a read of what was never written? Then it is done.
bool Space::fill_with_zeros(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  if (piece.transfer->writes || blocks_[static_cast<size_t>(piece.block)].bytes != 0) return false;
  std::memset(piece.data, 0, static_cast<size_t>(piece.bytes));
  --piece.transfer->left;
  ended_.notify_all();
  return true;
}

/// The checksum of a block that is written is taken here, by this thread.
void Space::start(uint64_t tag, Piece& piece) {
  const bool writes = piece.transfer->writes;
  if (writes && piece.done == 0) {
    const Block block{.checksum = checksum_of(piece.data, piece.bytes), .bytes = piece.bytes};
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<size_t>(piece.block)] = block;
  }
  queue_->start({.fd = file_of(piece.block).fd(),
                 .offset = offset_in_file(piece.block) + piece.done,
                 .data = piece.data + piece.done,
                 .bytes = piece.bytes - piece.done,
                 .writes = writes,
                 .tag = tag});
}

void Space::finish(const Outcome& outcome) {
  auto& piece = under_way_.at(outcome.tag);
  const bool later = outcome.result == -EINTR || outcome.result == -EAGAIN;
  if (outcome.result < 0 && !later) {
    return fail(piece, std::strerror(-static_cast<int>(outcome.result)));
  }
  if (!later) piece.done += outcome.result / kPageBytes * kPageBytes;
  if (piece.done < piece.bytes) {
    if (++piece.tries == kMostTries)
      return fail(piece, fmt::format("only {} bytes were moved", piece.done));
    return start(outcome.tag, piece);
  }
  uint64_t expected = 0;
  {
    const std::lock_guard lock(mutex_);
    expected = blocks_[static_cast<size_t>(piece.block)].checksum;
  }
  if (!piece.transfer->writes && checksum_of(piece.data, piece.bytes) != expected) {
    return fail(piece, "it is not what was written there (checksums differ)");
  }
  {
    const std::lock_guard lock(mutex_);
    (piece.transfer->writes ? counters_.written_bytes : counters_.read_bytes) += piece.bytes;
    --piece.transfer->left;
  }
  under_way_.erase(outcome.tag);
  ended_.notify_all();
}

void Space::check_deadlines() {
  const auto now = Clock::now();
  for (const auto& [tag, piece] : under_way_) {
    if (std::chrono::duration<double>(now - piece.started).count() < options_.timeout_seconds)
      continue;
    return fail(piece, fmt::format("no answer in {} s", options_.timeout_seconds));
  }
}

void Space::fail(const Piece& piece, const std::string& why) {
  fail(fmt::format("rank {}: offload: {} of {} bytes at {} of the scratch file in {}: {}",
                   options_.rank, piece.transfer->writes ? "write" : "read", piece.bytes,
                   offset_in_file(piece.block), file_of(piece.block).folder().string(), why));
}

void Space::fail(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = std::move(why);
  }
  ended_.notify_all();
}

}  // namespace tessera::offload
