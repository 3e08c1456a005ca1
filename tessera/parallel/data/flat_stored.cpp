// A flat buffer's slice, and what of it is on drives.
#include <algorithm>
#include <utility>

#include "tessera/autograd/gradient_sink.h"
#include "tessera/kernels/flat.h"
#include "tessera/kernels/pinned.h"
#include "tessera/parallel/data/flat_buffer.h"

namespace tessera::parallel {
namespace {

template <typename Byte>
torch::Tensor numbers_in(std::span<Byte> memory, torch::Dtype dtype) {
  const auto count = std::ssize(memory) / static_cast<int64_t>(torch::elementSize(dtype));
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): a tensor has no way to say it
  return torch::from_blob(const_cast<std::byte*>(memory.data()), {count}, torch::dtype(dtype));
}

std::span<std::byte> bytes_of(const torch::Tensor& values) {
  return {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()};
}

}  // namespace

c10::Allocator* FlatBuffer::slice_allocator() const {
  return options_.slice_device.is_cpu() ? kernels::pinned_allocator(options_.device) : nullptr;
}

void FlatBuffer::make_slice(torch::Dtype dtype) {
  const bool stored = plan_.slice == plan::Tier::drive || plan_.master_on_drives;
  const auto device = stored ? torch::Device(torch::kMeta) : options_.slice_device;
  if (plan_.slice_in_whole) {
    slice_ = own_part(whole);
  } else if (device.is_cpu()) {
    slice_ = kernels::empty_pinned(slice_size(), dtype, options_.device);
  } else {
    slice_ = torch::empty({slice_size()}, torch::dtype(dtype).device(device));
  }
  slice_.zero_();
}

void FlatBuffer::make_copy() {
  if (plan_.keeps_copy) {
    copy_ = torch::zeros({slice_size()}, whole.tensor().options().device(options_.device));
  } else if (plan_.keeps_whole && plan_.master_on_drives) {
    copy_ = own_part(whole).zero_();
  }
}

torch::Tensor FlatBuffer::gather_source() const {
  if (!regions_) return copy_.defined() ? copy_ : slice_;
  return numbers_in(regions_->read(region_), whole.tensor().scalar_type());
}

void FlatBuffer::store_in(std::shared_ptr<offload::StoredRegions> regions, size_t index) {
  regions_ = std::move(regions);
  region_ = index;
}

torch::Tensor FlatBuffer::change_stored(bool all) const {
  return numbers_in(regions_->change(region_, all), whole.tensor().scalar_type());
}

void FlatBuffer::keep_master(int64_t begin, int64_t end, offload::StoredBytes bytes) {
  TORCH_INTERNAL_ASSERT(plan_.master_on_drives);
  masters_.push_back({begin, end, std::move(bytes)});
}

void FlatBuffer::store_gradient_in(std::shared_ptr<offload::StoredRegions> regions, size_t index) {
  gradient_regions_ = std::move(regions);
  gradient_region_ = index;
}

void FlatBuffer::put_gradient_away() {
  if (!gradient_regions_ || !gradient_slice.allocated()) return;
  const auto& numbers = gradient_slice.tensor();
  squares_put_away_ = kernels::sum_of_squares(numbers).item<double>();
  const auto from = bytes_of(numbers);
  std::ranges::copy(from, gradient_regions_->change(gradient_region_, /*all=*/true).begin());
  gradient_is_away_ = true;
  gradient_slice.free();
}

void FlatBuffer::bring_gradient() {
  if (!gradient_is_away_ || gradient_slice.allocated()) return;
  gradient_slice.allocate();
  std::ranges::copy(gradient_regions_->read(gradient_region_),
                    bytes_of(gradient_slice.tensor()).begin());
}

void FlatBuffer::add_to_stored_gradient() {
  if (!gradient_is_away_) return;
  const auto to = own_part(gradient);
  if (to.dtype() != gradient_slice.tensor().dtype() || !to.is_cpu()) return;
  std::ranges::copy(gradient_regions_->read(gradient_region_), bytes_of(to).begin());
  for (const auto& entry : entries_) {  // which hold numbers from here on
    if (entry.parameter.grad().defined()) autograd::adds_to(entry.parameter.grad());
  }
  forget_gradient_slice();
}

void FlatBuffer::forget_gradient_slice() {
  gradient_slice.free();
  gradient_is_away_ = false;
}

int64_t FlatBuffer::slice_memory() const {
  int64_t bytes = slice_.is_meta() ? 0 : static_cast<int64_t>(slice_.nbytes());
  if (plan_.keeps_copy) bytes += static_cast<int64_t>(copy_.nbytes());
  return bytes;
}

/// Calls use(master, begin, end) for what each master has of elements [begin, end).
template <typename Masters>
void for_each_master(const Masters& masters, int64_t begin, int64_t end, const auto& use) {
  for (const auto& master : masters) {
    const int64_t from = std::max(begin, master.begin), to = std::min(end, master.end);
    if (from < to) use(master, from, to);
  }
}

offload::StoredBytes FlatBuffer::stored() {
  const auto size = static_cast<int64_t>(slice_.element_size());
  return {.read =
              [this, size](int64_t begin, std::span<std::byte> to) {
                if (!plan_.master_on_drives) {
                  const auto from = regions_->read(region_).subspan(static_cast<size_t>(begin));
                  std::copy_n(from.begin(), to.size(), to.begin());
                  return;
                }
                const int64_t first = begin / size, last = first + std::ssize(to) / size;
                for_each_master(
                    masters_, first, last, [&](const Master& master, int64_t from, int64_t end) {
                      master.bytes.read((from - master.begin) * size,
                                        to.subspan(static_cast<size_t>((from - first) * size),
                                                   static_cast<size_t>((end - from) * size)));
                    });
              },
          .write =
              [this, size](int64_t begin, std::span<const std::byte> from) {
                write_stored(begin / size, numbers_in(from, slice_.scalar_type()));
              }};
}

/// Writes elements begin .. of the slice.
void FlatBuffer::write_stored(int64_t begin, const torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  const int64_t end = begin + values.numel();
  const auto size = static_cast<int64_t>(slice_.element_size());
  for_each_master(masters_, begin, end, [&](const Master& master, int64_t from, int64_t to) {
    master.bytes.write((from - master.begin) * size,
                       bytes_of(values.narrow(0, from - begin, to - from)));
  });
  const auto target = regions_ ? change_stored(/*all=*/false) : copy_;
  target.narrow(0, begin, end - begin).copy_(values);
}

/// fill() in pieces.
void FlatBuffer::fill_stored(const OwnedExtent& extent, const Fill& set) {
  constexpr int64_t kPiece = 1 << 20;  // elements
  const auto& part = extent.values;
  for (int64_t done = 0; done < part.numel(); done += kPiece) {
    const auto piece =
        torch::empty({std::min(kPiece, part.numel() - done)}, torch::dtype(part.scalar_type()));
    set(extent.name, extent.begin + done, piece);
    write_stored(part.storage_offset() + done, piece);
  }
}

}  // namespace tessera::parallel
