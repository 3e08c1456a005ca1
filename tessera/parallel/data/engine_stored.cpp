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

/// Gives each gradient on drives its region.
void DataParallel::Engine::store_gradient_regions() {
  std::vector<int64_t> bytes;
  for (auto& unit : units) {
    for (auto& buffer : unit.buffers()) {
      if (!buffer.plan().gradient_on_drives) continue;
      stored_gradients.push_back(&buffer);
      bytes.push_back(buffer.slice_size() * buffer.plan().gradient_slice_bytes);
    }
  }
  if (bytes.empty()) return;
  gradient_regions = std::make_shared<offload::StoredRegions>(bytes, options.offload.storage);
  for (size_t i = 0; i < bytes.size(); ++i)
    stored_gradients[i]->store_gradient_in(gradient_regions, i);
}

/// What the reduction of a unit's gradient adds to, and those of the next ones, begins to come.
void DataParallel::Engine::read_gradients_ahead(size_t index) {
  if (!gradient_regions) return;
  std::vector<size_t> coming;
  for (size_t position = place[index] + 1; position-- > 0;) {
    for (const auto& buffer : units[order[position]].buffers()) {
      if (buffer.gradient_is_away()) coming.push_back(buffer.gradient_region());
    }
  }
  gradient_regions->read_ahead(coming);
}

/// For an optimizer, which goes from one to the next.
void DataParallel::Engine::bring_gradient(size_t region) {
  auto* buffer = stored_gradients[region];
  if (brought != nullptr && brought != buffer) brought->gradient_slice.free();
  brought = buffer;
  buffer->bring_gradient();
  std::vector<size_t> coming;
  for (size_t next = region + 1; next < stored_gradients.size(); ++next) coming.push_back(next);
  gradient_regions->read_ahead(coming);
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
