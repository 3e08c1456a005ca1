// What LibTorch's observers see of operators that its dispatcher does not know: its profiler
// (train/profile.h), and what counts the bytes of a step (bench/step_bytes.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

namespace tessera::kernels {

/// One run of an operator of ours, as long as it lives. Without an observer it costs a look at what the thread has.
///
///     const Observed run("tessera::rms_norm", {x, weight, y});
class Observed {
 public:
  /// `passes`: what it reads and writes, as often as it goes over each; undefined ones do not count.
  Observed(const char* name,
           std::initializer_list<std::reference_wrapper<const at::Tensor>> passes);

 private:
  std::vector<c10::IValue> inputs_;
  std::optional<at::RecordFunction> record_;
};

}  // namespace tessera::kernels
