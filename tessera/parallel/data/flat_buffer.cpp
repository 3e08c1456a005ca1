#include "tessera/parallel/data/flat_buffer.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "tessera/nn/replace_values.h"

namespace tessera::parallel {
namespace {

constexpr int64_t kAlignment = 32;  // elements: 64 bytes of bf16

int64_t aligned(int64_t elements, int64_t step) { return (elements + step - 1) / step * step; }

/// Makes memory unreadable for good: whoever reads or writes it gets an error instead of a crash.
void make_unreadable(c10::StorageImpl& storage) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this parameter, or a view of it, is sharded: it is whole only while the modules of its unit "
      "run; call unshard() to use it elsewhere (of an Accelerator: get_state_dict()), and to() "
      "before sharding");
}

/// NaN is the same as itself.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  constexpr torch::Dtype kBits[] = {torch::kUInt8, torch::kInt16, torch::kInt32, torch::kInt64};
  const auto bits = [&](const torch::Tensor& numbers) {
    const auto bytes = static_cast<size_t>(numbers.element_size());
    return numbers.is_floating_point() ? numbers.view(kBits[std::countr_zero(bytes)]) : numbers;
  };
  return torch::equal(bits(a), bits(b));
}

/// torch::load of C++ puts the stored bytes in a parameter's place, of whatever type they are.
bool has_bytes_of_another_type(const torch::Tensor& parameter) {
  const size_t bytes = parameter.storage().nbytes();
  const auto elements = static_cast<size_t>(parameter.numel());
  if (parameter.storage_offset() != 0 || bytes == elements * parameter.element_size()) return false;
  const size_t sizes[] = {1, 2, 4, 8};
  return std::ranges::any_of(sizes, [&](size_t size) { return bytes == elements * size; });
}

/// Storage as large as `whole` that nobody can read.
c10::Storage unreadable_storage(const c10::StorageImpl& whole) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), whole.nbytes(), c10::DataPtr(nullptr, whole.device()),
      /*allocator=*/nullptr, /*resizable=*/false);
  make_unreadable(*storage);
  return storage;
}

}  // namespace

FlatBuffer::FlatBuffer(const std::vector<Named>& parameters, FlatOptions options)
    : options_(std::move(options)) {
  TORCH_INTERNAL_ASSERT(!parameters.empty() && options_.slice < options_.num_slices);
  const torch::NoGradGuard no_grad;
  lay_out(parameters);
  const auto& first = parameters.front().second;
  const auto whole_dtype = options_.compute_dtype.value_or(first.scalar_type());
  const auto slice_dtype = options_.slice_dtype.value_or(first.scalar_type());
  make_plan(whole_dtype, slice_dtype, first.requires_grad());
  whole = Transient(size_, whole_dtype, options_.device);
  if (plan_.keeps_whole) whole.allocate();
  make_slice(slice_dtype);
  for (auto& entry : entries_) adopt(entry);
  make_copy();
  note_slice();
  note_versions();
  options_.values = nullptr;
  if (!plan_.keeps_whole || (unfilled_ && gathers())) hide_whole();
  if (plan_.gathered_bytes < plan_.whole_bytes) {
    codes = Transient(size_, torch::kByte, options_.device);
    if (plan_.keeps_codes) codes.allocate();
  }
  if (plan_.trained) make_gradient();
}

void FlatBuffer::make_plan(torch::Dtype whole_dtype, torch::Dtype slice_dtype, bool trained) {
  int64_t elements = 0, in_matrices = 0, in_blocks = 0;
  for (const auto& entry : entries_) {
    const int64_t count = entry.parameter.numel();
    elements += count;
    if (entry.treatment == optim::Treatment::matrices) in_matrices += count;
    if (entry.treatment == optim::Treatment::blocks) in_blocks += count;
  }
  const auto bytes = [](torch::Dtype dtype) {
    return static_cast<int64_t>(torch::elementSize(dtype));
  };
  const auto gradient_dtype = options_.gradient_dtype.value_or(whole_dtype);
  plan_ = plan::plan_buffer(
      elements, {.placement = options_.placement,
                 .num_slices = options_.num_slices,
                 .of_experts = options_.of_experts,
                 .trained = trained,
                 .offloaded = options_.offloaded,
                 .offloads_by_copy = options_.offloads_by_copy,
                 .on_drives = options_.on_drives,
                 .device_is_host = options_.device == options_.slice_device,
                 .in_backward = options_.in_backward,
                 .fp8_weights = options_.fp8_weights,
                 .fp8_gradients = options_.fp8_gradients,
                 .gradients_on_drives = options_.gradients_on_drives,
                 .whole_bytes = bytes(whole_dtype),
                 .slice_bytes = bytes(slice_dtype),
                 .gradient_bytes = bytes(gradient_dtype),
                 .slice_has_type_of_whole = slice_dtype == whole_dtype,
                 .gradient_has_type_of_sum =
                     gradient_dtype == torch::promote_types(slice_dtype, gradient_dtype)});
  plan_.in_matrices = in_matrices;
  plan_.in_blocks = in_blocks;
}

void FlatBuffer::make_gradient() {
  arrivals_.resize(entries_.size());
  const auto dtype = options_.gradient_dtype.value_or(whole.tensor().scalar_type());
  gradient = Transient(size_, dtype, options_.device);
  if (plan_.fp8_gradients) {
    gradient_slice = Transient(slice_size(), torch::kFloat8_e4m3fn, options_.slice_device);
    gradient_factor_ = torch::zeros({1});
  } else if (!plan_.gradient_slice_in_gradient) {
    const auto sum_dtype = torch::promote_types(slice_.scalar_type(), dtype);
    gradient_slice = Transient(slice_size(), sum_dtype, options_.slice_device, slice_allocator());
  }
  if (plan_.keeps_gradient) begin_gradient();
}

void FlatBuffer::prefix_names(const std::string& prefix) {
  for (auto& entry : entries_) entry.name = prefix + entry.name;
}

std::vector<size_t> FlatBuffer::newly_trained() {
  std::vector<size_t> indices;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    if (entry.parameter.requires_grad() && entry.accumulator == nullptr) indices.push_back(i);
  }
  return indices;
}

void FlatBuffer::start_training() {
  const auto& name = entries_.front().name;
  TORCH_CHECK_VALUE(
      options_.on_drives < OnDrives::masters, name,
      ": expected it to need a gradient when it was sharded, as slices are on drives; "
      "freeze it afterwards");
  TORCH_CHECK_VALUE(!options_.compute_dtype || slice_.scalar_type() != *options_.compute_dtype ||
                        slice_.element_size() >= 4,
                    name,
                    ": expected it to need a gradient when it was sharded (its values are kept in ",
                    slice_.scalar_type(), " alone); freeze it afterwards");
  plan_.trained = true;
  make_gradient();
}

void FlatBuffer::lay_out(const std::vector<Named>& parameters) {
  for (const auto& [name, parameter] : parameters) {
    TORCH_INTERNAL_ASSERT(parameter.scalar_type() == parameters.front().second.scalar_type() &&
                          parameter.requires_grad() == parameters.front().second.requires_grad());
    const auto treatment =
        options_.treatment ? options_.treatment(name, parameter) : optim::Treatment::elements;
    entries_.push_back({.name = name,
                        .parameter = parameter,
                        .sizes = parameter.sizes().vec(),
                        .decays = treatment == optim::Treatment::matrices || !options_.decays ||
                                  options_.decays(name, parameter),
                        .treatment = treatment});
  }
  std::ranges::stable_sort(entries_, [](const auto& a, const auto& b) {
    return std::pair(a.treatment, !a.decays) < std::pair(b.treatment, !b.decays);
  });
  int64_t alignment = kAlignment;  // of all
  for (auto& entry : entries_) {
    const bool in_blocks = entry.treatment == optim::Treatment::blocks;
    if (in_blocks) alignment = optim::kStateBlock;
    entry.offset = size_;
    size_ += aligned(entry.parameter.numel(), in_blocks ? optim::kStateBlock : kAlignment);
    add_to_groups({entry.offset, size_, entry.treatment, entry.decays});
  }
  content_size_ = size_;
  size_ = aligned(size_, alignment * options_.num_slices);
  if (size_ > content_size_) {
    add_to_groups({content_size_, size_, optim::Treatment::elements, /*decays=*/false});
  }
}

void FlatBuffer::add_to_groups(const Group& next) {
  if (groups_.empty() || groups_.back().treatment != next.treatment ||
      groups_.back().decays != next.decays) {
    groups_.push_back(next);
  }
  groups_.back().end = next.end;
}

int64_t FlatBuffer::matrices() const {
  const auto& first = groups_.front();
  return first.treatment == optim::Treatment::matrices ? first.end : 0;
}

void FlatBuffer::adopt(FlatEntry& entry) {
  const auto parameter = entry.parameter;
  if (!options_.values && parameter.is_meta()) {
    if (!unfilled_) unfilled_ = entry.name;
  } else {
    TORCH_CHECK_VALUE(
        !slice_.is_meta(), entry.name,
        ": expected a parameter on the meta device, to be filled in with fill(), as its "
        "values are kept on drives");
    const auto values =
        (options_.values ? options_.values(parameter) : parameter).detach().reshape({-1});
    if (plan_.keeps_whole) whole.tensor().narrow(0, entry.offset, values.numel()).copy_(values);
    const int64_t begin = std::max(slice_begin(), entry.offset);
    const int64_t end = std::min(slice_begin() + slice_size(), entry.offset + values.numel());
    if (begin < end && !plan_.slice_in_whole) {
      slice_.narrow(0, begin - slice_begin(), end - begin)
          .copy_(values.narrow(0, begin - entry.offset, end - begin));
    }
  }
  nn::replace_values(
      parameter, whole.tensor().narrow(0, entry.offset, parameter.numel()).view(parameter.sizes()));
}

std::vector<FlatBuffer::OwnedExtent> FlatBuffer::owned() const {
  std::vector<OwnedExtent> owned;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    const int64_t begin = std::max(slice_begin(), entry.offset);
    const int64_t end =
        std::min(slice_begin() + slice_size(), entry.offset + entry.parameter.numel());
    if (begin >= end) continue;
    owned.push_back({{begin - entry.offset, end - begin},
                     entry.name,
                     entry.parameter.sizes().vec(),
                     slice_.narrow(0, begin - slice_begin(), end - begin),
                     i});
  }
  return owned;
}

void FlatBuffer::fill(const Fill& set) {
  const torch::NoGradGuard no_grad;
  for (const auto& extent : owned()) {
    const auto& part = extent.values;
    if (part.is_meta()) {
      fill_stored(extent, set);
    } else if (part.is_cpu()) {
      set(extent.name, extent.begin, part);
    } else {
      const auto host = torch::empty(
          part.sizes(), part.options().device(torch::kCPU).pinned_memory(part.is_cuda()));
      set(extent.name, extent.begin, host);
      part.copy_(host);
    }
  }
}

void FlatBuffer::note_slice() {
  const torch::NoGradGuard no_grad;
  if (copy_.defined() && !slice_.is_meta()) copy_.copy_(slice_.to(copy_.device()));
  slice_version_ = slice_._version();
  sample_.reset();
}

torch::Tensor FlatBuffer::sample_of_slice() const {
  constexpr int64_t kSamples = 256;
  const int64_t step = std::max<int64_t>(1, slice_size() / kSamples);
  return slice_.detach().slice(0, 0, slice_size(), step);
}

void FlatBuffer::keep_sample() {
  if (!slice_.is_meta()) sample_ = sample_of_slice().clone();
}

bool FlatBuffer::slice_is_ahead() const {
  return slice_._version() != slice_version_ ||
         (sample_.defined() && !same_bits(sample_of_slice(), sample_));
}

void FlatBuffer::slice_changed() {
  note_slice();
  whole_is_current_ = codes_are_current_ = false;
  unfilled_.reset();
}

void FlatBuffer::end_graphs(bool all) {
  if (!trained()) return;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (all || arrived(i)) entries_[i].parameter.unsafeGetTensorImpl()->bump_version();
  }
  note_versions();
}

void FlatBuffer::whole_changed() {
  const torch::NoGradGuard no_grad;
  if (slice_.is_meta()) {
    auto changed = stray_parameter();
    if (!changed) changed = written_parameter();
    TORCH_CHECK_VALUE(!changed, *changed,
                      ": was written, but its values are kept on drives; write them with fill()");
    return slice_changed();
  }
  for (auto& entry : entries_) {
    // torch::load puts another tensor in the parameter's place.
    if (entry.parameter.is_alias_of(whole.tensor())) continue;
    TORCH_CHECK_VALUE(entry.parameter.sizes() == entry.sizes, entry.name, ": expected the shape ",
                      torch::IntArrayRef(entry.sizes), ", got ", entry.parameter.sizes());
    const int64_t size = entry.parameter.numel();
    const auto place = whole.tensor().narrow(0, entry.offset, size).view(entry.sizes);
    TORCH_CHECK_VALUE(entry.parameter.options().type_equal(place.options()), entry.name,
                      ": was moved or cast after it was sharded; call to() before");
    TORCH_CHECK_VALUE(!has_bytes_of_another_type(entry.parameter), entry.name, ": expected ",
                      place.scalar_type(),
                      ", got bytes of another type (torch::load converts "
                      "nothing); load before sharding, or copy_() the values");
    place.copy_(entry.parameter.detach());
    entry.parameter.set_data(place);
    // torch::load makes LibTorch forget where its gradients arrive.
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(entry.parameter);
    if (accumulator.get() != entry.accumulator) entry.accumulator = nullptr;
  }
  if (!plan_.slice_in_whole) {
    // What was not written keeps the precision of the slice.
    const auto own = own_part(whole).to(slice_.device());
    const auto written = own != rounded_slice();
    slice_.copy_(torch::where(written, own.to(slice_.scalar_type()), slice_));
  }
  slice_changed();
  note_versions();
}

bool FlatBuffer::is_stray(const FlatEntry& entry) const {
  const auto* storage = entry.parameter.storage().unsafeGetStorageImpl();
  const auto* away = unreadable_ ? unreadable_.unsafeGetStorageImpl() : nullptr;
  return storage != whole.tensor().storage().unsafeGetStorageImpl() && storage != away;
}

std::optional<std::string> FlatBuffer::stray_parameter() const {
  const auto stray =
      std::ranges::find_if(entries_, [this](const auto& entry) { return is_stray(entry); });
  return stray == entries_.end() ? std::nullopt : std::optional(stray->name);
}

std::optional<std::string> FlatBuffer::written_parameter() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].parameter._version() != versions_[i]) return entries_[i].name;
  }
  return {};
}

void FlatBuffer::note_versions() {
  versions_.clear();
  for (const auto& entry : entries_) versions_.push_back(entry.parameter._version());
}

void FlatBuffer::point_parameters_to(const c10::Storage& storage) {
  for (const auto& entry : entries_) {
    if (is_stray(entry)) continue;  // to be told, or to be brought to its place
    entry.parameter.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  }
}

void FlatBuffer::hide_whole() {
  if (!unreadable_) {
    unreadable_ = unreadable_storage(*whole.tensor().storage().unsafeGetStorageImpl());
  }
  point_parameters_to(unreadable_);
}

const torch::Tensor& FlatBuffer::receive_whole() {
  if (whole.allocated()) return whole.tensor();
  arriving_ = whole.ahead();
  return arriving_;
}

void FlatBuffer::whole_arrived() {
  whole_is_current_ = true;
  if (arriving_.defined()) whole.take(arriving_);
  arriving_.reset();
  point_parameters_to(whole.tensor().storage());
}

void FlatBuffer::free_whole() {
  if (plan_.keeps_whole || !whole.allocated()) return;
  whole.free();
  hide_whole();
}

void FlatBuffer::leave_views() {
  if (plan_.keeps_whole && gathers()) hide_whole();
  if (plan_.keeps_whole || whole.allocated() || size_ == 0) return;
  // Nobody's but ours and autograd's, whose graphs are out of date now.
  if (whole.tensor().storage().use_count() == 1) return;
  make_unreadable(*whole.tensor().storage().unsafeGetStorageImpl());
  whole = Transient(size_, whole.tensor().scalar_type(), options_.device);
}

}  // namespace tessera::parallel
