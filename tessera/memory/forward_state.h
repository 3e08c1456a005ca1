// What a forward depends on beside its arguments and parameters: random numbers and autocast.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <vector>

namespace tessera::memory {

/// States of the default generators of the CPU and of the device of `tensors` (if CUDA).
class RandomState {
 public:
  static RandomState of(const std::vector<at::Tensor>& tensors);

  bool operator==(const RandomState& other) const;

  /// Makes it the state of the generators; their state until then.
  RandomState exchange() const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;  ///< bytes, on the CPU
};

/// Sets the generators while it lives; then they go on from where they were.
class RandomGuard {
 public:
  explicit RandomGuard(const RandomState& state) : before_(state.exchange()) {}
  ~RandomGuard() { before_.exchange(); }
  RandomGuard(const RandomGuard&) = delete;
  RandomGuard& operator=(const RandomGuard&) = delete;

 private:
  RandomState before_;
};

/// This thread's autocast: for each of the devices on or off, and the dtype.
class AutocastState {
 public:
  static AutocastState of_this_thread();
  void set() const;

  /// The same without the cache of casted weights: what is cast in a forward without grad mode has
  /// no graph and must not be found by the recomputation, nor the recomputation's by later calls.
  AutocastState without_cache() const;

 private:
  struct Device {
    bool enabled;
    at::ScalarType dtype;
  };
  static constexpr std::array kDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};
  std::array<Device, kDevices.size()> devices_{};
  bool cache_enabled_ = true;
};

/// Sets autocast while it lives.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState& state) : before_(AutocastState::of_this_thread()) {
    state.set();
  }
  ~AutocastGuard() { before_.set(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState before_;
};

}  // namespace tessera::memory
