#include "tessera/optim/stored_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera::optim {
namespace {

using offload::Space;

/// Parts begin at multiples of it: of a vector's width, of blocks that share a scale, of a page.
constexpr int64_t kPartStep = 4096;
constexpr int64_t kAlignment = 64;  // bytes, of each state in a part

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// Where the states of kinds[kind] begin in a part of so many numbers; kinds.size(): its end.
int64_t begin_of(const std::vector<StateKind>& kinds, size_t kind, int64_t numbers) {
  int64_t bytes = 0;
  for (size_t i = 0; i < kind; ++i) bytes += round_up(kinds[i].bytes(numbers), kAlignment);
  return bytes;
}

int64_t part_bytes(const std::vector<StateKind>& kinds, int64_t numbers) {
  return whole_pages(begin_of(kinds, kinds.size(), numbers));
}

}  // namespace

StoredStates::StoredStates(std::vector<Slice> slices, const StorageOptions& options)
    : slices_(std::move(slices)), layouts_(slices_.size()), next_slice_(slices_.size()) {
  const int64_t block = options.space.block_bytes;
  buffer_bytes_ = options.host_memory / options.buffers / kPageBytes * kPageBytes;
  lay_out(buffer_bytes_, block);
  int64_t end = 0, largest = 0;
  std::optional<size_t> first, previous;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const auto& layout = layouts_[i];
    if (layout.num_parts == 0) continue;
    layouts_[i].begin = end;
    end += layout.num_parts * layout.part_stride;
    largest = std::max(largest, part_bytes(slices_[i].kinds, layout.part_numbers));
    if (!first) first = i;
    if (previous) next_slice_[*previous] = i;
    previous = i;
  }
  if (previous) next_slice_[*previous] = *first;
  buffer_bytes_ = largest;  // no more than there is to keep
  memory_ = PageBuffer(buffer_bytes_ * options.buffers);
  buffers_.resize(static_cast<size_t>(options.buffers));
  space_ = std::make_unique<Space>(end, options.space);
}

StoredStates::~StoredStates() = default;

void StoredStates::lay_out(int64_t buffer_bytes, int64_t block_bytes) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const auto& [numbers, kinds] = slices_[i];
    if (kinds.empty() || numbers == 0) continue;
    const int64_t least = part_bytes(kinds, std::min(numbers, kPartStep));
    if (least > buffer_bytes) {
      user_error("host_memory: expected at least {} for each of the buffers, got {}",
                 format_bytes(least), format_bytes(buffer_bytes));
    }
    auto& layout = layouts_[i];
    // A first guess from the bytes of a step, then down to what fits.
    int64_t steps = std::max<int64_t>(
        1, buffer_bytes / std::max<int64_t>(1, begin_of(kinds, kinds.size(), kPartStep)) + 1);
    while (steps > 1 && part_bytes(kinds, steps * kPartStep) > buffer_bytes) --steps;
    layout.part_numbers = std::min(numbers, steps * kPartStep);
    layout.num_parts = (numbers + layout.part_numbers - 1) / layout.part_numbers;
    layout.part_stride = round_up(part_bytes(kinds, layout.part_numbers), block_bytes);
  }
}

int64_t StoredStates::stored_bytes() const {
  int64_t bytes = 0;
  for (const auto& [numbers, kinds] : slices_) {
    for (const auto& kind : kinds) bytes += kind.bytes(numbers);
  }
  return bytes;
}

int64_t StoredStates::numbers_of(const Part& part) const {
  const auto& layout = layouts_[part.slice];
  return std::min(layout.part_numbers,
                  slices_[part.slice].numbers - part.part * layout.part_numbers);
}

int64_t StoredStates::place_of(const Part& part) const {
  const auto& layout = layouts_[part.slice];
  return layout.begin + part.part * layout.part_stride;
}

std::span<std::byte> StoredStates::room_of(const Buffer& buffer, const Part& part) const {
  const auto index = static_cast<size_t>(&buffer - buffers_.data());
  const auto bytes = part_bytes(slices_[part.slice].kinds, numbers_of(part));
  return memory_.bytes().subspan(index * static_cast<size_t>(buffer_bytes_),
                                 static_cast<size_t>(bytes));
}

StoredStates::Part StoredStates::after(const Part& part) const {
  if (part.part + 1 < layouts_[part.slice].num_parts) return {part.slice, part.part + 1};
  return {next_slice_[part.slice], 0};
}

StoredStates::Buffer* StoredStates::find(const Part& part) {
  const auto found = std::ranges::find(buffers_, std::optional(part), &Buffer::holds);
  return found == buffers_.end() ? nullptr : &*found;
}

void StoredStates::start_read(Buffer& buffer, const Part& part) {
  space_->wait(buffer.transfer);  // a write of what it held
  buffer.holds = part;
  buffer.last_use = ++clock_;
  buffer.transfer = space_->read(place_of(part), room_of(buffer, part));
}

/// The part in memory, wherever it is now.
StoredStates::Buffer& StoredStates::bring(const Part& part) {
  auto* buffer = find(part);
  if (buffer == nullptr) {
    buffer = &*std::ranges::min_element(buffers_, {}, &Buffer::last_use);
    start_read(*buffer, part);
  }
  space_->wait(buffer->transfer);
  buffer->transfer.reset();
  buffer->last_use = ++clock_;
  return *buffer;
}

/// Starts reading what comes after `from`, into buffers that nobody needs: one stays for the part
/// at work, one for what is written.
void StoredStates::read_ahead(Part from) {
  auto coming = from;
  for (size_t i = 0; i + 2 < buffers_.size(); ++i) {
    coming = after(coming);
    if (coming == from) return;
    if (auto* there = find(coming)) {
      there->last_use = ++clock_;
      continue;
    }
    auto& oldest = *std::ranges::min_element(buffers_, {}, &Buffer::last_use);
    if (!space_->is_done(oldest.transfer)) return;
    start_read(oldest, coming);
  }
}

std::vector<torch::Tensor> StoredStates::states_in(const Buffer& buffer, const Part& part) const {
  const auto& kinds = slices_[part.slice].kinds;
  const auto numbers = numbers_of(part);
  auto* data = room_of(buffer, part).data();
  std::vector<torch::Tensor> states;
  for (size_t i = 0; i < kinds.size(); ++i) {
    states.push_back(torch::from_blob(data + begin_of(kinds, i, numbers), {kinds[i].count(numbers)},
                                      torch::dtype(kinds[i].dtype)));
  }
  return states;
}

void StoredStates::update(size_t slice, const Update& update) {
  if (last_slice_) next_slice_[*last_slice_] = slice;
  last_slice_ = slice;
  for (int64_t i = 0; i < layouts_[slice].num_parts; ++i) {
    const Part part{slice, i};
    auto& buffer = bring(part);
    read_ahead(part);
    update(i * layouts_[slice].part_numbers, numbers_of(part), states_in(buffer, part));
    buffer.transfer = space_->write(place_of(part), room_of(buffer, part));
  }
}

/// Nothing is under way, and what is on the drive is the newest.
void StoredStates::settle() {
  for (auto& buffer : buffers_) {
    space_->wait(buffer.transfer);
    buffer.transfer.reset();
  }
}

offload::StoredBytes StoredStates::bytes(size_t slice, size_t kind) {
  return {.read =
              [this, slice, kind](int64_t begin, std::span<std::byte> to) {
                settle();
                for_each_stretch(slice, kind, begin, std::ssize(to),
                                 [&](const Stretch& stretch, int64_t done) {
                                   read(stretch, to.subspan(static_cast<size_t>(done),
                                                            static_cast<size_t>(stretch.bytes)));
                                 });
              },
          .write =
              [this, slice, kind](int64_t begin, std::span<const std::byte> from) {
                settle();
                for (auto& buffer : buffers_) buffer.holds.reset();  // it is older from now on
                for_each_stretch(slice, kind, begin, std::ssize(from),
                                 [&](const Stretch& stretch, int64_t done) {
                                   write(stretch, from.subspan(static_cast<size_t>(done),
                                                               static_cast<size_t>(stretch.bytes)));
                                 });
              }};
}

/// Those of `bytes` bytes from `begin` of a slice's state, small enough for a copy of their blocks.
void StoredStates::for_each_stretch(
    size_t slice, size_t kind, int64_t begin, int64_t bytes,
    const std::function<void(const Stretch&, int64_t done)>& use) const {
  constexpr int64_t kMostBytes = int64_t{8} << 20;
  const auto& layout = layouts_[slice];
  const auto& kinds = slices_[slice].kinds;
  const int64_t of_a_part = kinds[kind].bytes(layout.part_numbers);
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = begin + done;
    const Part part{slice, at / of_a_part};
    const auto numbers = numbers_of(part);
    const int64_t length = std::min({bytes - done, (part.part + 1) * of_a_part - at, kMostBytes});
    use({.part_begin = place_of(part),
         .part_bytes = part_bytes(kinds, numbers),
         .offset = begin_of(kinds, kind, numbers) + at % of_a_part,
         .bytes = length},
        done);
    done += length;
  }
}

namespace {

/// The whole blocks around a stretch, in memory.
struct Blocks {
  PageBuffer memory;
  int64_t begin = 0;  // of the part
  std::span<std::byte> bytes;
};

Blocks blocks_around(Space& space, int64_t part_begin, int64_t part_bytes, int64_t offset,
                     int64_t bytes) {
  const int64_t block = space.options().block_bytes;
  const int64_t begin = offset / block * block;
  const int64_t end = std::min(part_bytes, round_up(offset + bytes, block));
  Blocks found{.memory = PageBuffer(end - begin), .begin = begin, .bytes = {}};
  found.bytes = found.memory.bytes().first(static_cast<size_t>(end - begin));
  space.wait(space.read(part_begin + begin, found.bytes));
  return found;
}

}  // namespace

void StoredStates::read(const Stretch& stretch, std::span<std::byte> to) {
  const auto blocks =
      blocks_around(*space_, stretch.part_begin, stretch.part_bytes, stretch.offset, stretch.bytes);
  std::memcpy(to.data(), blocks.bytes.data() + stretch.offset - blocks.begin, to.size());
}

void StoredStates::write(const Stretch& stretch, std::span<const std::byte> from) {
  const auto blocks =
      blocks_around(*space_, stretch.part_begin, stretch.part_bytes, stretch.offset, stretch.bytes);
  std::memcpy(blocks.bytes.data() + stretch.offset - blocks.begin, from.data(), from.size());
  space_->wait(space_->write(stretch.part_begin + blocks.begin, blocks.bytes));
}

}  // namespace tessera::optim
