// What is too dear to compute twice: how operators take part in selective activation checkpointing
// (memory/activation_checkpointing.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::autograd {

/// The sizes of `tensor` without its memory. NaN, so that a gradient that does read it shows.
at::Tensor without_values(const at::Tensor& tensor);

/// x + y, of the same sizes and type. Where y comes from without_values() nothing is added: the sum is NaN, too.
at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& y);

/// The results of matrix products and attention in the order in which they were computed.
class Tape {
 public:
  Tape() = default;
  explicit Tape(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  /// Adds a result; its tensors are handles, nothing is copied.
  void put(const std::vector<at::Tensor>& results);

  /// The next `count` tensors. Throws c10::Error if there are no more: the second run computed what
  /// the first did not.
  std::vector<at::Tensor> take(size_t count);

  /// Throws c10::ValueError if a result was changed in place after it was put here: a second run
  /// would start from the changed one.
  void check_unchanged() const;

  /// Has everything been taken?
  bool is_used_up() const { return next_ == tensors_.size(); }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> versions_;
  size_t next_ = 0;
};

/// How many such operators a call runs, and what the last one gives without its values: all that a second run must know
/// which computes the others alone.
class LastResults {
 public:
  void put(const std::vector<at::Tensor>& results);

  /// Begins a second run; the operators of several must not mix.
  void begin() { next_ = 0; }
  /// The last operator's results, if it is the one that comes next.
  std::optional<std::vector<at::Tensor>> take_if_last();

 private:
  struct Shape {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };
  std::vector<Shape> last_;
  size_t num_operators_ = 0, next_ = 0;
};

/// While it lives, the operators of this thread put their results on `tape` (record) or take them
/// from there instead of computing (replay); of LastResults, all but the last are computed in the replay, too. Nests: a tape
/// that records inside one that is replayed records what was taken.
class TapeGuard {
 public:
  enum class Use { record, replay };

  TapeGuard(Tape& tape, Use use);
  TapeGuard(LastResults& last, Use use);
  ~TapeGuard();
  TapeGuard(const TapeGuard&) = delete;
  TapeGuard& operator=(const TapeGuard&) = delete;

  /// Does this thread run within a replay?
  static bool replays();

 private:
  friend std::vector<at::Tensor> compute_once(size_t count,
                                              c10::function_ref<std::vector<at::Tensor>()> compute);

  /// What need not be computed.
  std::optional<std::vector<at::Tensor>> known(size_t count);
  void put(const std::vector<at::Tensor>& results);

  std::variant<Tape*, LastResults*> on_;
  Use use_;
  TapeGuard* outer_;
};

/// Runs an operator's compute(), which returns `count` tensors, or takes what a tape in use holds
/// instead. The tensors put on a tape are those returned, so that a later change in place is
/// noticed.
std::vector<at::Tensor> compute_once(size_t count,
                                     c10::function_ref<std::vector<at::Tensor>()> compute);

}  // namespace tessera::autograd
