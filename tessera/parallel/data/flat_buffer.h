// A unit's parameters as views of one flat buffer: the second of the three mechanisms
// (docs/architecture.md).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::parallel {

/// One parameter's place in its unit's buffer.
struct FlatEntry {
  std::string name;
  torch::Tensor parameter;  ///< the module's own; its data and gradient are views of the buffer
  int64_t offset = 0;       ///< in elements
  bool decays = true;       ///< belongs to the optimizer group with weight decay
};

/// Moves parameters into one flat data buffer and makes them views of it, for life: no copy-in and
/// no copy-out around collectives or the optimizer. Gradients are views of a second buffer, made at
/// once and zero, into which autograd accumulates. Parameters with weight decay come first, so that
/// each optimizer group is one range; each parameter starts at a multiple of 64 bytes. Memory: data
/// and gradient, 2 x the padded size; the parameters' old storage is freed one by one.
class FlatBuffer {
 public:
  using Named = std::pair<std::string, torch::Tensor>;

  /// Parameters must share dtype and device: ValueError names the first that differs.
  FlatBuffer(const std::vector<Named>& parameters, const std::function<bool(const Named&)>& decays);

  const std::vector<FlatEntry>& entries() const { return entries_; }
  const torch::Tensor& data() const { return data_; }          ///< [P], padding zero
  const torch::Tensor& gradient() const { return gradient_; }  ///< [P], padding zero
  int64_t decayed() const {
    return decayed_;
  }  ///< elements [0, decayed()) decay, the rest does not

 private:
  std::vector<FlatEntry> entries_;
  torch::Tensor data_, gradient_;
  int64_t decayed_ = 0;
};

}  // namespace tessera::parallel
