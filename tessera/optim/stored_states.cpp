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

StoredStates::StoredStates(std::vector<Slice> slices, const offload::StorageOptions& options)
    : slices_(std::move(slices)), layouts_(slices_.size()), next_slice_(slices_.size()) {
  int64_t least = 1;
  for (const auto& [numbers, kinds] : slices_)
    least = std::max(least, part_bytes(kinds, std::min(numbers, kPartStep)));
  // Little memory is fewer parts.
  const int64_t most = std::clamp(options.host_memory / least, int64_t{2}, options.buffers);
  lay_out(options.host_memory / most / kPageBytes * kPageBytes, options.space.block_bytes);
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
  buffers_ = std::make_unique<offload::Buffers>(
      end, options.space, offload::parts_in_memory(stored_bytes(), largest, most), largest);
}

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

offload::Stretch StoredStates::stretch_of(const Part& part) const {
  const auto& layout = layouts_[part.slice];
  return {.begin = layout.begin + part.part * layout.part_stride,
          .bytes = part_bytes(slices_[part.slice].kinds, numbers_of(part))};
}

StoredStates::Part StoredStates::after(const Part& part) const {
  if (part.part + 1 < layouts_[part.slice].num_parts) return {part.slice, part.part + 1};
  return {next_slice_[part.slice], 0};
}

std::vector<offload::Stretch> StoredStates::coming_after(const Part& part) const {
  std::vector<offload::Stretch> coming;
  auto next = after(part);
  for (size_t i = 0; i < buffers_->most_ahead() && next != part; ++i, next = after(next))
    coming.push_back(stretch_of(next));
  return coming;
}

std::vector<torch::Tensor> StoredStates::states_in(std::span<std::byte> memory,
                                                   const Part& part) const {
  const auto& kinds = slices_[part.slice].kinds;
  const auto numbers = numbers_of(part);
  std::vector<torch::Tensor> states;
  for (size_t i = 0; i < kinds.size(); ++i) {
    states.push_back(torch::from_blob(memory.data() + begin_of(kinds, i, numbers),
                                      {kinds[i].count(numbers)}, torch::dtype(kinds[i].dtype)));
  }
  return states;
}

void StoredStates::update(size_t slice, const Update& update) {
  if (last_slice_) next_slice_[*last_slice_] = slice;
  last_slice_ = slice;
  for (int64_t i = 0; i < layouts_[slice].num_parts; ++i) {
    const Part part{slice, i};
    const auto memory = buffers_->bring(stretch_of(part));
    buffers_->read_ahead(coming_after(part));
    update(i * layouts_[slice].part_numbers, numbers_of(part), states_in(memory, part));
    buffers_->write(stretch_of(part));
  }
}

offload::StoredBytes StoredStates::bytes(size_t slice, size_t kind) {
  return {.read =
              [this, slice, kind](int64_t begin, std::span<std::byte> to) {
                buffers_->settle();
                for_each_piece(
                    slice, kind, begin, std::ssize(to), [&](const Piece& piece, int64_t done) {
                      read(piece,
                           to.subspan(static_cast<size_t>(done), static_cast<size_t>(piece.bytes)));
                    });
              },
          .write =
              [this, slice, kind](int64_t begin, std::span<const std::byte> from) {
                buffers_->settle();
                buffers_->forget();  // it is older from now on
                for_each_piece(slice, kind, begin, std::ssize(from),
                               [&](const Piece& piece, int64_t done) {
                                 write(piece, from.subspan(static_cast<size_t>(done),
                                                           static_cast<size_t>(piece.bytes)));
                               });
              }};
}

/// Those of `bytes` bytes from `begin` of a slice's state, small enough for a copy of their blocks.
void StoredStates::for_each_piece(
    size_t slice, size_t kind, int64_t begin, int64_t bytes,
    const std::function<void(const Piece&, int64_t done)>& use) const {
  constexpr int64_t kMostBytes = int64_t{8} << 20;
  const auto& layout = layouts_[slice];
  const auto& kinds = slices_[slice].kinds;
  const int64_t of_a_part = kinds[kind].bytes(layout.part_numbers);
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = begin + done;
    const Part part{slice, at / of_a_part};
    const auto numbers = numbers_of(part);
    const int64_t length = std::min({bytes - done, (part.part + 1) * of_a_part - at, kMostBytes});
    use({.part = stretch_of(part),
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

Blocks blocks_around(Space& space, const offload::Stretch& part, int64_t offset, int64_t bytes) {
  const int64_t block = space.options().block_bytes;
  const int64_t begin = offset / block * block;
  const int64_t end = std::min(part.bytes, round_up(offset + bytes, block));
  Blocks found{.memory = PageBuffer(end - begin), .begin = begin, .bytes = {}};
  found.bytes = found.memory.bytes().first(static_cast<size_t>(end - begin));
  space.wait(space.read(part.begin + begin, found.bytes));
  return found;
}

}  // namespace

void StoredStates::read(const Piece& piece, std::span<std::byte> to) {
  const auto blocks = blocks_around(buffers_->space(), piece.part, piece.offset, piece.bytes);
  std::memcpy(to.data(), blocks.bytes.data() + piece.offset - blocks.begin, to.size());
}

void StoredStates::write(const Piece& piece, std::span<const std::byte> from) {
  const auto blocks = blocks_around(buffers_->space(), piece.part, piece.offset, piece.bytes);
  std::memcpy(blocks.bytes.data() + piece.offset - blocks.begin, from.data(), from.size());
  auto& space = buffers_->space();
  space.wait(space.write(piece.part.begin + blocks.begin, blocks.bytes));
}

}  // namespace tessera::optim
