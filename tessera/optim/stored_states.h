// What an optimizer keeps of its slices, on drives: it comes part by part when a slice is updated.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/offload/buffers.h"
#include "tessera/offload/stored_bytes.h"
#include "tessera/optim/state_kind.h"

namespace tessera::optim {

/// The states of slices in an offload::Space, in parts that fit a buffer. While one part is updated,
/// the next ones are read and those before are written, which goes on until the next step: the
/// order of slices is taken to be that of the step before. Memory: options.host_memory, less
/// where there is less to keep.
class StoredStates {
 public:
  struct Slice {
    int64_t numbers = 0;
    std::vector<StateKind> kinds;  ///< empty: none of its states are here
  };

  /// UserError: host_memory that holds no part; and as offload::Space.
  StoredStates(std::vector<Slice> slices, const offload::StorageOptions& options);

  /// Calls update(begin, states) for numbers [begin, begin + n) of the slice, part by part: `states`
  /// are those of the kinds, [kind.count(n)], to be changed in place. SystemError: the drive.
  using Update =
      std::function<void(int64_t begin, int64_t n, const std::vector<torch::Tensor>& states)>;
  void update(size_t slice, const Update& update);

  /// The slice's state of kinds[kind], [kind.count(numbers)]. Not while update() runs.
  offload::StoredBytes bytes(size_t slice, size_t kind);

  int64_t memory_bytes() const { return buffers_->memory_bytes(); }
  int64_t stored_bytes() const;  ///< moved in a step, each way
  const offload::Space& space() const { return buffers_->space(); }

 private:
  /// Where a slice's parts are.
  struct Layout {
    int64_t begin = 0;         // in the space
    int64_t part_numbers = 0;  // of each part, the last one may have fewer
    int64_t part_stride = 0;   // bytes of the space from one part to the next
    int64_t num_parts = 0;
  };
  struct Part {
    size_t slice = 0;
    int64_t part = 0;
    bool operator==(const Part&) const = default;
  };
  /// Some of a part's bytes.
  struct Piece {
    offload::Stretch part;
    int64_t offset = 0, bytes = 0;  // of the part
  };

  void lay_out(int64_t buffer_bytes, int64_t block_bytes);
  int64_t numbers_of(const Part& part) const;
  offload::Stretch stretch_of(const Part& part) const;
  std::vector<offload::Stretch> coming_after(const Part& part) const;
  Part after(const Part& part) const;
  std::vector<torch::Tensor> states_in(std::span<std::byte> memory, const Part& part) const;
  void for_each_piece(size_t slice, size_t kind, int64_t begin, int64_t bytes,
                      const std::function<void(const Piece&, int64_t done)>& use) const;
  void read(const Piece& piece, std::span<std::byte> to);
  void write(const Piece& piece, std::span<const std::byte> from);

  std::vector<Slice> slices_;
  std::vector<Layout> layouts_;
  std::vector<size_t> next_slice_;  // that is updated after each
  std::optional<size_t> last_slice_;
  std::unique_ptr<offload::Buffers> buffers_;
};

}  // namespace tessera::optim
