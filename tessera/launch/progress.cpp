#include "tessera/launch/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::launch {
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

int64_t* map_counters(int fd, int64_t num_counters) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(num_counters) * sizeof(int64_t),
                        PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<int64_t*>(memory);
}

void unmap_counters(int64_t* counters, int64_t num_counters) {
  if (counters != nullptr) ::munmap(counters, static_cast<size_t>(num_counters) * sizeof(int64_t));
}

}  // namespace

StepBeacon StepBeacon::from_environment() {
  StepBeacon beacon;
  const auto fd = small_number("TESSERA_PROGRESS_FD");
  const auto local_rank = small_number("LOCAL_RANK");
  if (!fd || !local_rank || !is_progress_file(*fd)) return beacon;
  struct stat info {};
  if (::fstat(*fd, &info) != 0) return beacon;
  const int64_t num_counters = info.st_size / static_cast<int64_t>(sizeof(int64_t));
  if (*local_rank >= num_counters) return beacon;
  beacon.counters_ = map_counters(*fd, num_counters);
  beacon.num_counters_ = num_counters;
  beacon.index_ = *local_rank;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  return beacon;
}

StepBeacon::~StepBeacon() { unmap_counters(counters_, num_counters_); }

StepBeacon::StepBeacon(StepBeacon&& other) noexcept
    : counters_(std::exchange(other.counters_, nullptr)),
      num_counters_(other.num_counters_),
      index_(other.index_) {}

StepBeacon& StepBeacon::operator=(StepBeacon&& other) noexcept {
  std::swap(counters_, other.counters_);
  std::swap(num_counters_, other.num_counters_);
  std::swap(index_, other.index_);
  return *this;
}

void StepBeacon::set(int64_t step) {
  if (counters_ != nullptr)
    std::atomic_ref(counters_[index_]).store(step, std::memory_order_relaxed);
}

StepCounters::StepCounters(int num_ranks)
    : fd_(::memfd_create(kName, MFD_CLOEXEC)), num_counters_(num_ranks) {
  if (!fd_.is_open() ||
      ::ftruncate(fd_.get(), num_ranks * static_cast<off_t>(sizeof(int64_t))) != 0) {
    system_error("launch: no shared memory");
  }
  counters_ = map_counters(fd_.get(), num_counters_);
  if (counters_ == nullptr) system_error("launch: no shared memory");
  clear();
}

StepCounters::~StepCounters() { unmap_counters(counters_, num_counters_); }

std::optional<int64_t> StepCounters::step(int local_rank) const {
  const int64_t value = std::atomic_ref(counters_[local_rank]).load(std::memory_order_relaxed);
  return value == kNoStep ? std::nullopt : std::optional(value);
}

void StepCounters::clear() {
  for (int64_t i = 0; i < num_counters_; ++i) std::atomic_ref(counters_[i]).store(kNoStep);
}

}  // namespace tessera::launch
