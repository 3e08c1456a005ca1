// A forward that runs twice (memory/activation_checkpointing.h): how what is attached to modules inside learns
// so.
#pragma once

#include <cstdint>

namespace tessera::nn {

/// Stands around each of the two forwards of a checkpointed call, on the thread that runs it. The
/// first has no graph, so an output inside tells nothing of the backward that will come to it; the
/// second, in the call's own backward, has one. Scopes nest: a checkpointed module inside another
/// has its first forward in the second one of the outer.
class Recomputation {
 public:
  enum class Forward { first, second };

  explicit Recomputation(Forward forward);
  ~Recomputation();
  Recomputation(const Recomputation&) = delete;
  Recomputation& operator=(const Recomputation&) = delete;

  /// Will what this thread runs now run again before its backward?
  static bool runs_again();

  /// Did it run before, in a first forward?
  static bool ran_before();

  /// Notes that a module with hooks is called.
  static void count_call();
  int64_t num_calls() const { return num_calls_; }  ///< inside, at any depth

 private:
  Forward forward_;
  Recomputation* outer_;
  int64_t num_calls_ = 0;
};

}  // namespace tessera::nn
