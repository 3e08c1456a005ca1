#include "tessera/memory/forward_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace tessera::memory {

RandomState RandomState::of(const std::vector<at::Tensor>& tensors) {
  RandomState state;
  state.generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
  const auto on_cuda =
      std::ranges::find_if(tensors, [](const auto& tensor) { return tensor.is_cuda(); });
  if (on_cuda != tensors.end()) {
    state.generators_.push_back(at::globalContext().defaultGenerator(on_cuda->device()));
  }
  for (auto& generator : state.generators_) {
    const std::scoped_lock lock(generator.mutex());
    state.states_.push_back(generator.get_state());
  }
  return state;
}

bool RandomState::operator==(const RandomState& other) const {
  return std::ranges::equal(states_, other.states_, [](const auto& a, const auto& b) {
    return a.nbytes() == b.nbytes() &&
           std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  });
}

RandomState RandomState::exchange() const {
  RandomState before;
  before.generators_ = generators_;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto generator = generators_[i];
    const std::scoped_lock lock(generator.mutex());
    before.states_.push_back(generator.get_state());
    generator.set_state(states_[i]);
  }
  return before;
}

AutocastState AutocastState::of_this_thread() {
  AutocastState state;
  for (size_t i = 0; i < kDevices.size(); ++i) {
    state.devices_[i] = {.enabled = at::autocast::is_autocast_enabled(kDevices[i]),
                         .dtype = at::autocast::get_autocast_dtype(kDevices[i])};
  }
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::set() const {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], devices_[i].enabled);
    at::autocast::set_autocast_dtype(kDevices[i], devices_[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

AutocastState AutocastState::without_cache() const {
  auto state = *this;
  state.cache_enabled_ = false;
  return state;
}

}  // namespace tessera::memory
