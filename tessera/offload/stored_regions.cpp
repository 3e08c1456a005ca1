#include "tessera/offload/stored_regions.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera::offload {
namespace {

/// Where each region begins in the space; last, where the space ends.
std::vector<int64_t> places(const std::vector<int64_t>& bytes, int64_t block_bytes) {
  std::vector<int64_t> begins{0};
  for (const int64_t size : bytes) {
    begins.push_back(begins.back() + (size + block_bytes - 1) / block_bytes * block_bytes);
  }
  return begins;
}

int64_t largest_of(const std::vector<int64_t>& bytes) {
  return whole_pages(std::ranges::max(bytes));
}

/// One at work, one that is written, the others are read ahead.
constexpr int64_t kLeastRegions = 3;

int64_t num_buffers(const std::vector<int64_t>& bytes, int64_t host_memory) {
  const int64_t largest = largest_of(bytes);
  if (host_memory < kLeastRegions * largest) {
    user_error(
        "host_memory: expected room for {} of the largest unit's slices ({} each), got {} as what "
        "is on drives shares it; set more",
        kLeastRegions, format_bytes(largest), format_bytes(host_memory));
  }
  return regions_in_memory(std::ssize(bytes), largest, host_memory);
}

}  // namespace

int64_t regions_in_memory(int64_t num_regions, int64_t largest, int64_t host_memory) {
  return std::clamp(host_memory / largest, kLeastRegions, std::max(kLeastRegions, num_regions));
}

StoredRegions::StoredRegions(const std::vector<int64_t>& bytes, const StorageOptions& options)
    : bytes_(bytes),
      begins_(places(bytes, options.space.block_bytes)),
      stored_bytes_(std::accumulate(bytes.begin(), bytes.end(), int64_t{0})),
      buffers_(begins_.back(), options.space, num_buffers(bytes, options.host_memory),
               largest_of(bytes)) {}

Stretch StoredRegions::stretch_of(size_t index) const {
  return {.begin = begins_[index], .bytes = whole_pages(bytes_[index])};
}

std::span<const std::byte> StoredRegions::read(size_t index) {
  if (changed_ != index) flush();
  return buffers_.bring(stretch_of(index)).first(static_cast<size_t>(bytes_[index]));
}

std::span<std::byte> StoredRegions::change(size_t index, bool all) {
  if (changed_ != index) flush();
  const auto stretch = stretch_of(index);
  const bool none_is_older = all && changed_ != index;
  changed_ = index;
  const auto memory = none_is_older ? buffers_.room_for(stretch) : buffers_.bring(stretch);
  return memory.first(static_cast<size_t>(bytes_[index]));
}

void StoredRegions::flush() {
  if (changed_) buffers_.write(stretch_of(*changed_));
  changed_.reset();
}

void StoredRegions::read_ahead(std::span<const size_t> coming) {
  flush();
  std::vector<Stretch> stretches;
  for (const size_t index : coming) stretches.push_back(stretch_of(index));
  buffers_.read_ahead(stretches);
}

}  // namespace tessera::offload
