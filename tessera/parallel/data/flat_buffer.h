// Parameters as views of one flat buffer: the second of the three mechanisms
// (docs/architecture.md).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/base/extent.h"
#include "tessera/offload/stored_bytes.h"
#include "tessera/offload/stored_regions.h"
#include "tessera/parallel/data/transient.h"
#include "tessera/parallel/replication.h"
#include "tessera/plan/buffer.h"

namespace tessera::parallel {

/// One parameter's place in its buffer.
struct FlatEntry {
  std::string name;
  torch::Tensor parameter;  ///< the module's own; its data and gradient are views of the buffer
  std::vector<int64_t> sizes = {};  ///< its shape
  int64_t offset = 0;               ///< in elements
  bool decays = true;               ///< belongs to an optimizer group with weight decay
  optim::Treatment treatment = optim::Treatment::elements;
  const void* accumulator = nullptr;  ///< where its gradients arrive, since note_watched()
};

struct FlatOptions {
  Placement placement = Placement::replicate;
  int num_slices = 1;                          ///< N ranks share the buffer
  int slice = 0;                               ///< this rank's
  std::optional<torch::Dtype> compute_dtype;   ///< of the whole buffer; none: the parameters' own
  std::optional<torch::Dtype> slice_dtype;     ///< what the optimizer updates; none: likewise
  std::optional<torch::Dtype> gradient_dtype;  ///< of the whole gradient; none: compute_dtype
  torch::Device device = torch::kCPU;          ///< of the whole buffers
  torch::Device slice_device = torch::kCPU;    ///< of the slice and its gradient
  bool offloaded = false;                  ///< the slice and its gradient live on `slice_device`
  bool offloads_by_copy = false;           ///< but gathers take a copy of the slice on `device`
  OnDrives on_drives = OnDrives::nothing;  ///< OffloadPolicy says so
  bool gradients_on_drives = false;        ///< likewise
  Replication replication;                 ///< of all its parameters
  bool apart = false;                      ///< DataParallelOptions::apart says so of them
  bool of_experts = false;                 ///< DataParallelOptions::of_experts does
  bool in_backward = false;                ///< DataParallelOptions::update_in_backward
  bool fp8_weights = false;                ///< DataParallelOptions::fp8_weights says so of them
  bool fp8_gradients = false;              ///< DataParallelOptions::fp8_gradients
  std::function<bool(const std::string& name, const torch::Tensor& parameter)> decays;
  std::function<optim::Treatment(const std::string& name, const torch::Tensor& parameter)>
      treatment;
  /// First values of a parameter; none: its own, or zero if it is on the meta device.
  std::function<torch::Tensor(const torch::Tensor& parameter)> values;
};

/// Parameters of one kind (trained or frozen, one dtype, shared alike) laid out one after the other
/// in a flat buffer of P elements, of which this rank owns slice r: elements [r P/N, (r+1) P/N).
/// The module's parameters become views of the whole buffer for life; only its memory comes and
/// goes (transient.h). Nothing is copied in or out: collectives write into the buffer, gradients
/// accumulate into it. A slice's boundary may fall inside a parameter.
///
/// Parameters that an optimizer treats alike and decays alike are one range: in the order of
/// optim::Treatment, and of those what has weight decay first. Each parameter starts at a multiple
/// of 32 elements; P is a multiple of 32 N; padding is zero at first. Where states share scales by
/// blocks of 256, these parameters start at multiples of that, and P is a multiple of 256 N: then
/// blocks lie alike for any N.
///
/// In 8 bits (FlatOptions::fp8_weights) each parameter of the whole buffer is E4M3 times a power of two,
/// by the largest number of it on any rank (share_amax); what is gathered, or kept, is `codes`, of which
/// the whole is made when a unit runs.
///
/// On drives (flat_stored.cpp): a slice is a region of StoredRegions, which gathers copy into the whole, or
/// what optimizers keep beside their states (keep_master), of which gathers take a copy. Either is a tensor
/// on the meta device here; stored() has its bytes.
///
/// Memory in elements: slice P/N; whole P while it is there; whole gradient P while it is there;
/// gradient slice P/N while it is there; copy P/N. Where a slice has the dtype and device of a
/// whole buffer that is kept, it is part of that and costs nothing.
class FlatBuffer {
 public:
  using Named = std::pair<std::string, torch::Tensor>;

  /// Parameters must share dtype and requires_grad. Those on the meta device leave the slice zero
  /// until fill(). Of others each rank copies its part; their old memory is freed one by one.
  FlatBuffer(const std::vector<Named>& parameters, FlatOptions options);

  const std::vector<FlatEntry>& entries() const { return entries_; }
  const FlatOptions& options() const { return options_; }
  const plan::BufferPlan& plan() const { return plan_; }  ///< what of it stays in memory
  int64_t size() const { return size_; }                  ///< P
  int64_t content_size() const { return content_size_; }  ///< P before it is padded for N slices
  int64_t slice_size() const { return size_ / plan_.num_slices; }  ///< P/N
  int64_t slice_begin() const { return slice_size() * options_.slice; }
  /// Elements [begin, end) of P that an optimizer treats and decays alike.
  struct Group {
    int64_t begin = 0, end = 0;
    optim::Treatment treatment = optim::Treatment::elements;
    bool decays = true;
  };
  const std::vector<Group>& groups() const { return groups_; }  ///< all of P, in order
  int64_t matrices() const;  ///< elements [0, matrices()) are of Treatment::matrices
  bool trained() const { return plan_.trained; }

  /// What of a parameter lies in this rank's slice.
  struct OwnedExtent : Extent {
    std::string name;
    std::vector<int64_t> shape;  ///< of the parameter
    torch::Tensor values;        ///< [length], of the slice: on the meta device, of stored()
    size_t entry = 0;            ///< of entries()
  };
  std::vector<OwnedExtent> owned() const;

  /// set(name, begin, part): write elements begin .. of the parameter `name` into `part` [n], on
  /// the host; called for each of owned().
  using Fill =
      std::function<void(const std::string& name, int64_t begin, const torch::Tensor& part)>;
  void fill(const Fill& set);

  /// [P/N] this rank's values.
  const torch::Tensor& slice() const { return slice_; }
  /// [P/N] the same as gathers take them: the slice, or its copy. On drives: until another buffer's is
  /// asked for.
  torch::Tensor gather_source() const;
  /// Is that on the host of a device, or would it be if this were one?
  bool gathers_from_host() const { return options_.offloaded && !copy_.defined() && !regions_; }

  /// Gives a buffer on drives its region, zero at first.
  void store_in(std::shared_ptr<offload::StoredRegions> regions, size_t index);
  /// Its index in the regions; none: its slice is in memory.
  std::optional<size_t> region() const { return regions_ ? std::optional(region_) : std::nullopt; }
  /// [P/N] in the dtype of the whole, of a buffer on drives, to be changed, as gather_source(). `all`: all
  /// of it will be.
  torch::Tensor change_stored(bool all) const;
  /// Elements [begin, end) of the slice are kept by an optimizer.
  void keep_master(int64_t begin, int64_t end, offload::StoredBytes bytes);
  /// The bytes of slice() where it is on the meta device. What is written is brought to gather_source(),
  /// too. Valid for life.
  offload::StoredBytes stored();
  /// Gives a gradient on drives its region.
  void store_gradient_in(std::shared_ptr<offload::StoredRegions> regions, size_t index);
  size_t gradient_region() const { return gradient_region_; }
  /// Brings to the drives what gradient_slice has, and frees that. Nothing where it stays in memory.
  void put_gradient_away();
  bool gradient_is_away() const { return gradient_is_away_; }  ///< the drives have this step's
  /// Gives gradient_slice memory, with what was put away.
  void bring_gradient();
  /// On a rank alone: brings what was put away to where the next backward adds to it. Does nothing where the
  /// slice has another type, or is on the host and the gradient is not.
  void add_to_stored_gradient();
  /// The sum of the squares of its numbers.
  double squares_put_away() const { return squares_put_away_; }
  void forget_gradient_slice();
  int64_t slice_memory() const;  ///< bytes of slice and copy
  void slice_changed();          ///< the slice has new values: brings the copy up to date
  void whole_changed();  ///< the whole parameters have: this rank's are brought to the slice
  /// A backward of a graph made with the parameters as they were is an error: with all that are trained, or those
  /// that arrived().
  void end_graphs(bool all);
  /// Was the slice changed since slice_changed() was told last? After keep_sample() that is found
  /// by some of its values, too: LibTorch's optimizers write to data(), of which no version tells.
  bool slice_is_ahead() const;
  void keep_sample();
  void forget_sample() { sample_.reset(); }
  /// Name of a parameter that has no values: it was on the meta device, and nothing was filled in.
  const std::optional<std::string>& unfilled() const { return unfilled_; }

  /// Name of a parameter that no longer lies in the buffer (Module::to(), set_data), if there is
  /// one.
  std::optional<std::string> stray_parameter() const;
  /// Name of a parameter that was written in place since note_versions().
  std::optional<std::string> written_parameter() const;
  void note_versions();

  void prefix_names(const std::string& prefix);  ///< of its parameters

  /// Indices of entries() that need a gradient and are not watched.
  std::vector<size_t> newly_trained();
  void note_watched(size_t i, const void* accumulator) { entries_[i].accumulator = accumulator; }
  /// Makes a frozen buffer a trained one. ValueError if its values are kept in 16 bits alone.
  void start_training();

  Transient whole;     ///< [P] parameters, in the compute dtype
  Transient gradient;  ///< [P]; frozen parameters have none
  /// [P/N] in the dtype of slice or gradient, whichever is wider, or in 8 bits; none where it is part
  /// of `gradient`.
  Transient gradient_slice;
  Transient codes;  ///< [P] bytes, of parameters in 8 bits

  /// [P/N] of `whole` or `gradient`.
  torch::Tensor own_part(const Transient& buffer) const { return own_part(buffer.tensor()); }
  torch::Tensor own_part(const torch::Tensor& buffer) const {
    return buffer.narrow(0, slice_begin(), slice_size());
  }
  /// [P/N] the gradient that belongs to slice(), in 8 bits times gradient_factor() if it is kept so:
  /// valid while its memory is there.
  torch::Tensor gradient_of_slice() const {
    return plan_.gradient_slice_in_gradient ? own_part(gradient) : gradient_slice.tensor();
  }

  /// The same as numbers: in 8 bits a float32 copy.
  torch::Tensor gradient_numbers() const;
  /// float32 [1]; undefined: the gradient is not kept in 8 bits. Valid for life.
  const torch::Tensor& gradient_factor() const { return gradient_factor_; }
  /// Rounds `gradient` [P/N] to what is kept in 8 bits, E4M3 by its largest number.
  void keep_gradient(const torch::Tensor& gradient);

  /// Are parameters gathered in 8 bits?
  bool has_codes() const { return codes.size() > 0; }
  /// [entries()] the largest magnitude of this rank's part of each, on the host.
  torch::Tensor amax() const;
  void share_amax(const torch::Tensor& of_all_ranks);  ///< the same over all ranks
  std::vector<std::string> without_scale() const;      ///< parameters that hold NaN or infinity
  bool codes_are_current() const { return plan_.keeps_codes && codes_are_current_; }
  void encode_slice();  ///< this rank's part of `codes`, which get memory
  /// All codes are there: makes the whole parameters of them, and frees them unless they are kept.
  void decode_whole();

  /// Must the whole be brought up to date before it is used?
  bool gathers() const { return plan_.num_slices > 1 || !plan_.slice_in_whole; }
  /// [P] where the whole parameters are to be brought to. Until whole_arrived() nobody can read
  /// them, unless they are kept and no slice changed.
  const torch::Tensor& receive_whole();
  void whole_arrived();
  /// Is it kept, and has no slice changed since it arrived? So it is of a frozen buffer at each step.
  bool whole_is_current() const { return plan_.keeps_whole && whole_is_current_; }
  void free_whole();  ///< unless it is kept; using a parameter is an error then
  /// The values change: parameters become unreadable until whole_arrived(), and views of a whole that comes
  /// and goes that are still held for good.
  void leave_views();
  int64_t whole_bytes() const {  ///< on its way, too
    return whole.bytes() + (arriving_.defined() ? static_cast<int64_t>(arriving_.nbytes()) : 0);
  }
  /// Gives the gradient memory, if it had none; every grad() is a view of it. Those that are new, or that a user
  /// dropped (zero_grad), are unwritten (autograd/gradient_sink.h), and zero once fill_gradient() was called.
  void begin_gradient();
  void fill_gradient();
  void clear_gradient();  ///< all of it is unwritten
  void free_gradient();   ///< unless it is kept; every grad() is undefined then
  /// Did a backward add to the gradient of entries()[i] since reset_arrivals()? After
  /// note_arrivals().
  bool arrived(size_t i) const { return arrivals_[i].arrived; }
  void set_arrived(size_t i, bool arrived) { arrivals_[i].arrived = arrived; }
  void note_arrivals();
  void reset_arrivals();
  /// Name of a parameter whose grad() is no view of the whole gradient, if there is one.
  std::optional<std::string> stray_gradient() const;
  /// Is the storage of `tensor` that of the whole parameters?
  bool holds(const torch::Tensor& tensor) const {
    return tensor.has_storage() && tensor.storage().is_alias_of(whole.tensor().storage());
  }

 private:
  void lay_out(const std::vector<Named>& parameters);
  void add_to_groups(const Group& next);
  void make_plan(torch::Dtype whole_dtype, torch::Dtype slice_dtype, bool trained);
  c10::Allocator* slice_allocator() const;  ///< none: of the device
  void make_slice(torch::Dtype dtype);
  void make_copy();
  void make_gradient();
  void clear_gaps();
  torch::Tensor rounded_slice() const;
  void note_slice();
  torch::Tensor sample_of_slice() const;
  void adopt(FlatEntry& entry);
  void fill_stored(const OwnedExtent& extent, const Fill& set);
  void write_stored(int64_t begin, const torch::Tensor& values);
  bool is_stray(const FlatEntry& entry) const;
  void point_parameters_to(const c10::Storage& storage);  ///< but stray ones
  void hide_whole();  ///< until whole_arrived() reading a parameter is an error

  FlatOptions options_;
  plan::BufferPlan plan_;
  std::vector<FlatEntry> entries_;
  int64_t size_ = 0, content_size_ = 0;
  std::vector<Group> groups_;
  torch::Tensor slice_, copy_, arriving_;
  std::shared_ptr<offload::StoredRegions> regions_;
  size_t region_ = 0;
  struct Master {
    int64_t begin = 0, end = 0;  // elements of the slice
    offload::StoredBytes bytes;
  };
  std::vector<Master> masters_;
  std::shared_ptr<offload::StoredRegions> gradient_regions_;
  size_t gradient_region_ = 0;
  bool gradient_is_away_ = false;
  double squares_put_away_ = 0;
  c10::Storage unreadable_;  ///< of parameters whose memory is away, or out of date
  std::optional<std::string> unfilled_;
  int64_t slice_version_ = 0;
  bool whole_is_current_ = false, codes_are_current_ = false;
  torch::Tensor gradient_factor_;
  std::vector<float> scales_;      // of the entries, in 8 bits
  torch::Tensor sample_;           // of the slice
  std::vector<int64_t> versions_;  // of the entries
  struct Arrival {
    int64_t version = 0;  // of grad(), before
    bool arrived = false;
  };
  std::vector<Arrival> arrivals_;  // by entry
};

}  // namespace tessera::parallel
