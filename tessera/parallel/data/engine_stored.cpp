// Slices on drives, which come before their unit runs.
#include <vector>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {

/// Gives each buffer on drives its region.
void DataParallel::Engine::store_regions() {
  std::vector<int64_t> bytes;
  std::vector<FlatBuffer*> stored;
  for (auto& unit : units) {
    for (auto& buffer : unit.buffers()) {
      if (buffer.plan().slice != plan::Tier::drive || buffer.region()) continue;
      stored.push_back(&buffer);
      bytes.push_back(buffer.slice_size() * buffer.plan().whole_bytes);
    }
  }
  if (stored.empty()) return;
  regions = std::make_shared<offload::StoredRegions>(bytes, options.offload.storage);
  for (size_t i = 0; i < stored.size(); ++i) stored[i]->store_in(regions, i);
}

/// Slices of units from that at `position` of the order on, which are not whole and are read, begin to come.
void DataParallel::Engine::read_from(std::ptrdiff_t position, int direction) {
  std::vector<size_t> coming;
  for (; position >= 0 && position < std::ssize(order); position += direction) {
    const size_t index = order[static_cast<size_t>(position)];
    const auto& unit = units[index];
    if (unit.has_whole() || (direction < 0 && !backward_reads(index))) continue;
    for (const auto& buffer : unit.buffers()) {
      if (buffer.region()) coming.push_back(*buffer.region());
    }
  }
  regions->read_ahead(coming);
}

/// What a unit's forward or backward does not need, but those after it, comes meanwhile.
void DataParallel::Engine::read_ahead(size_t index, int direction) {
  if (regions) read_from(static_cast<std::ptrdiff_t>(place[index]) + direction, direction);
}

/// What the optimizer changed goes to the drives, and what the next forward begins with comes.
void DataParallel::Engine::finish_regions() {
  if (!regions) return;
  regions->flush();
  read_from(0, 1);
}

}  // namespace tessera::parallel
