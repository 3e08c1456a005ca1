#include "tessera/launch/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::launch {

/// One line of cache.
struct RankProgress {
  int64_t step;
  char doing[56];  ///< ends with a 0
};

namespace {

constexpr const char* kName = "tessera_progress";
constexpr int64_t kNoStep = -1;

std::optional<int> small_number(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > INT_MAX) return std::nullopt;
  return static_cast<int>(value);
}

/// A child of a rank inherits the variable but not the file: the number may mean another file by
/// then.
bool is_progress_file(int fd) {
  char target[64] = {};
  const auto length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target - 1);
  return length > 0 && std::string_view(target).starts_with(std::string("/memfd:") + kName);
}

RankProgress* map_ranks(int fd, int64_t num_ranks) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(num_ranks) * sizeof(RankProgress),
                        PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<RankProgress*>(memory);
}

void unmap_ranks(RankProgress* ranks, int64_t num_ranks) {
  if (ranks != nullptr) ::munmap(ranks, static_cast<size_t>(num_ranks) * sizeof(RankProgress));
}

}  // namespace

StepBeacon StepBeacon::from_environment() {
  StepBeacon beacon;
  const auto fd = small_number("TESSERA_PROGRESS_FD");
  const auto local_rank = small_number("LOCAL_RANK");
  if (!fd || !local_rank || !is_progress_file(*fd)) return beacon;
  struct stat info {};
  if (::fstat(*fd, &info) != 0) return beacon;
  const int64_t num_ranks = info.st_size / static_cast<int64_t>(sizeof(RankProgress));
  if (*local_rank >= num_ranks) return beacon;
  beacon.ranks_ = map_ranks(*fd, num_ranks);
  beacon.num_ranks_ = num_ranks;
  beacon.index_ = *local_rank;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  return beacon;
}

StepBeacon::~StepBeacon() { unmap_ranks(ranks_, num_ranks_); }

StepBeacon::StepBeacon(StepBeacon&& other) noexcept
    : ranks_(std::exchange(other.ranks_, nullptr)),
      num_ranks_(other.num_ranks_),
      index_(other.index_) {}

StepBeacon& StepBeacon::operator=(StepBeacon&& other) noexcept {
  std::swap(ranks_, other.ranks_);
  std::swap(num_ranks_, other.num_ranks_);
  std::swap(index_, other.index_);
  return *this;
}

void StepBeacon::set(int64_t step) {
  if (ranks_ == nullptr) return;
  doing({});
  std::atomic_ref(ranks_[index_].step).store(step, std::memory_order_relaxed);
}

void StepBeacon::doing(std::string_view what) {
  if (ranks_ == nullptr) return;
  auto& text = ranks_[index_].doing;
  text[what.copy(text, sizeof(text) - 1)] = 0;
}

ProgressBoard::ProgressBoard(int num_ranks)
    : fd_(::memfd_create(kName, MFD_CLOEXEC)), num_ranks_(num_ranks) {
  if (!fd_.is_open() ||
      ::ftruncate(fd_.get(), num_ranks * static_cast<off_t>(sizeof(RankProgress))) != 0) {
    system_error("launch: no shared memory");
  }
  ranks_ = map_ranks(fd_.get(), num_ranks_);
  if (ranks_ == nullptr) system_error("launch: no shared memory");
  clear();
}

ProgressBoard::~ProgressBoard() { unmap_ranks(ranks_, num_ranks_); }

std::optional<int64_t> ProgressBoard::step(int local_rank) const {
  const int64_t value = std::atomic_ref(ranks_[local_rank].step).load(std::memory_order_relaxed);
  return value == kNoStep ? std::nullopt : std::optional(value);
}

std::string ProgressBoard::doing(int local_rank) const {
  const auto& text = ranks_[local_rank].doing;
  return {text, ::strnlen(text, sizeof(text))};
}

void ProgressBoard::clear() {
  for (int64_t i = 0; i < num_ranks_; ++i) {
    ranks_[i].doing[0] = 0;
    std::atomic_ref(ranks_[i].step).store(kNoStep);
  }
}

}  // namespace tessera::launch
