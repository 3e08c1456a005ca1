// Regions of a space that are used as a whole, in an order that the caller knows ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/offload/buffers.h"
#include "tessera/offload/stored_bytes.h"

namespace tessera::offload {

/// How many of `num_regions` regions, the largest of which has `largest` bytes, are in memory at a time: at least
/// three, even where host_memory holds less.
int64_t regions_in_memory(int64_t num_regions, int64_t largest, int64_t host_memory);

/// Regions on drives, zero at first. As many as fit are in memory at a time. For one thread at a time.
class StoredRegions {
 public:
  /// Takes at most `options.host_memory`, not heeding `options.buffers`. UserError: it holds not three of the largest
  /// regions; and as Space.
  StoredRegions(const std::vector<int64_t>& bytes, const StorageOptions& options);

  /// Region `index` in memory, until the next call. SystemError: the drive.
  std::span<const std::byte> read(size_t index);

  /// The same, to be changed; what is written there goes to the drive once another region is asked for,
  /// or with flush(). `all`: every byte will be written, so nothing is read.
  std::span<std::byte> change(size_t index, bool all = false);
  void flush();  ///< begins to write what was changed

  /// Begins to read those of `coming` that are not there, the nearest first.
  void read_ahead(std::span<const size_t> coming);

  int64_t stored_bytes() const { return stored_bytes_; }  ///< of all regions
  int64_t memory_bytes() const { return buffers_.memory_bytes(); }
  const Space& space() const { return buffers_.space(); }

 private:
  Stretch stretch_of(size_t index) const;

  std::vector<int64_t> bytes_, begins_;
  int64_t stored_bytes_ = 0;
  std::optional<size_t> changed_;
  Buffers buffers_;
};

}  // namespace tessera::offload
