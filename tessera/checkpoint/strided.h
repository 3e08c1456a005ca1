// Parts of tensors whose elements lie apart, as a matrix that stands transposed in a larger tensor, and how they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// A part of a tensor of shape `of`. Its element [i, j] is number offset + i strides[0] +
/// j strides[1] of the tensor, row-major; a vector has i alone.
///   rows 3 and 4 of [9, C]                   offset 3 C, shape {2, C}, strides {C, 1}
///   every second column of [R, C], turned    offset 0, shape {C / 2, R}, strides {2, C}
struct Strided {
  std::vector<int64_t> of;
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

/// Elements of one tensor and their places in another. Element i columns.count + j, for i below
/// rows.count, is number from + i rows.from + j columns.from there and has the place
/// to + i rows.to + j columns.to here. Places grow from each element to the next.
struct Walk {
  struct Loop {
    int64_t count = 1;
    int64_t from = 1, to = 1;  ///< steps
  };

  int64_t from = 0, to = 0;
  Loop rows, columns;

  int64_t count() const { return rows.count * columns.count; }
  int64_t before(int64_t place) const;  ///< how many elements have a smaller one
  bool dense() const;                   ///< no place is left out
};

/// Elements from .. from + count, to places from `to` on.
Walk straight(int64_t from, int64_t to, int64_t count);
Walk out_of(const Strided& part);  ///< of what it is a part of, to a tensor of its own
Walk into(const Strided& part);    ///< of a tensor of its own, to what it is a part of

/// Elements [first, last) of a walk, in bytes from the place `begin` on.
struct WalkPart {
  int64_t first = 0, last = 0;
  int64_t begin = 0;
  int64_t element_bytes = 0;
  std::span<std::byte> destination;
};

/// Reads part of a walk over the source's tensor `name`. What lies together is one read into the
/// destination; of other elements, those between which little lies are read together. Memory: a few MB.
void read_walk(const TensorSource& source, const std::string& name, const Walk& walk,
               const WalkPart& part);

/// The same of values that are there already: all of the walk's, in its order.
void copy_walk(std::span<const std::byte> values, const Walk& walk, const WalkPart& part);

/// Would read_walk make so many small reads that the whole walk had better be read once and kept?
bool worth_keeping(const Walk& walk, const WalkPart& part);

/// What was read whole, of the last two walks: as many as take turns in a tensor.
class KeptWalks {
 public:
  using Values = std::shared_ptr<const std::vector<std::byte>>;

  /// What `read` gave for this walk, now or before. Safe for several threads.
  Values get(const Walk& walk, const std::function<std::vector<std::byte>()>& read);
  void clear();

 private:
  std::mutex mutex_;
  std::list<std::pair<const Walk*, Values>> kept_;  // that used last in front
};

}  // namespace tessera::checkpoint
