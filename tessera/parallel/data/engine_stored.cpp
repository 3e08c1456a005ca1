// Slices on drives, which come before their unit runs.
#include <vector>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {

/// Gives each buffer whose slice or gradient is on drives its region of those.
void DataParallel::Engine::store_regions() {
  std::vector<FlatBuffer*> slices;
  std::vector<int64_t> of_slices, of_gradients;
  for (auto& unit : units) {
    for (auto& buffer : unit.buffers()) {
      const auto& plan = buffer.plan();
      if (plan.slice == plan::Tier::drive && !buffer.region()) {
        slices.push_back(&buffer);
        of_slices.push_back(buffer.slice_size() * plan.whole_bytes);
      }
      if (plan.gradient_on_drives) {
        stored_gradients.push_back(&buffer);
        of_gradients.push_back(buffer.slice_size() * plan.gradient_slice_bytes);
      }
    }
  }
  const auto& storage = options.offload.storage;
  if (!slices.empty()) regions = std::make_shared<offload::StoredRegions>(of_slices, storage);
  for (size_t i = 0; i < slices.size(); ++i) slices[i]->store_in(regions, i);
  if (!stored_gradients.empty())
    gradient_regions = std::make_shared<offload::StoredRegions>(of_gradients, storage);
  for (size_t i = 0; i < stored_gradients.size(); ++i)
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

/// Called by an optimizer, which goes from one region to the next.
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
