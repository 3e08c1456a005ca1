// What is too dear to compute twice: how operators take part in activation checkpointing
// (memory/activation_checkpointing.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::autograd {

/// x + y, of the same sizes and type. Where y is without values (Tape) nothing is added: the sum has none, too.
at::Tensor residual_sum(const at::Tensor& x, const at::Tensor& y);

/// What takes part.
enum class Operator {
  product,  ///< of matrices
  attention,
  sum,       ///< over ranks, of what a product gave
  exchange,  ///< of rows between ranks
};

/// Whose results a tape keeps for a second run, which computes the others again.
enum class Keeps {
  nothing,
  to_attention,  ///< up to the first product behind the first attention, and a sum of that; of a call without attention all
  all,
};

/// The operators of a call in the order in which they ran, and the results of some.
class Tape {
 public:
  /// `drops_last`: what the last operator gives is neither kept nor computed again; it comes back without values: NaN, so
  /// that a gradient that does read it shows.
  explicit Tape(Keeps keeps = Keeps::all, bool drops_last = false)
      : keeps_(keeps), drops_last_(drops_last) {}

  /// Does a second run differ from one without this tape?
  bool is_needed() const { return keeps_ != Keeps::nothing || drops_last_; }

  /// An operator has run. Tensors are handles, nothing is copied.
  void put(Operator by, const std::vector<at::Tensor>& results);

  /// Ends the first run: what is to be kept until the second. Throws c10::ValueError if one was changed in place after it
  /// was put here: a second run would start from the changed one.
  std::vector<at::Tensor> finish();

  /// Begins a second run with those; the operators of several must not mix.
  void begin(std::vector<at::Tensor> kept);

  /// The next operator's results, `count` tensors, if it need not run. Throws c10::Error if the first run had no such
  /// operator.
  std::optional<std::vector<at::Tensor>> take(size_t count);

  /// Ends the second run, and lets go of what was kept. Has everything run again?
  bool end();

 private:
  enum class Place { before_attention, in_attention, behind_attention, beyond };
  struct Shape {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };

  bool keeps(Operator by);

  Keeps keeps_;
  bool drops_last_;
  Place place_ = Place::before_attention;
  std::vector<at::Tensor> tensors_;  ///< of the first `num_kept_` operators
  std::vector<int64_t> versions_;
  std::vector<Shape> last_;  ///< what the last operator gave
  size_t num_operators_ = 0, num_kept_ = 0;
  size_t next_ = 0, next_tensor_ = 0;
};

/// While it lives, the operators of this thread put their results on `tape` (record) or take them
/// from there instead of computing (replay). Nests: a tape
/// that records inside one that is replayed records what was taken.
class TapeGuard {
 public:
  enum class Use { record, replay };

  TapeGuard(Tape& tape, Use use);
  ~TapeGuard();
  TapeGuard(const TapeGuard&) = delete;
  TapeGuard& operator=(const TapeGuard&) = delete;

  /// Does this thread run within a replay?
  static bool replays();

 private:
  friend std::vector<at::Tensor> compute_once(Operator by, size_t count,
                                              c10::function_ref<std::vector<at::Tensor>()> compute);

  Tape& tape_;
  Use use_;
  TapeGuard* outer_;
};

/// Runs the compute() of an operator, which returns `count` tensors, or takes what a tape in use holds
/// instead. The tensors put on a tape are those returned, so that a later change in place is
/// noticed.
std::vector<at::Tensor> compute_once(Operator by, size_t count,
                                     c10::function_ref<std::vector<at::Tensor>()> compute);

}  // namespace tessera::autograd
