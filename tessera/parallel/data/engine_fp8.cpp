// What units' parameters in 8 bits need of each other.
#include <utility>
#include <vector>

#include "tessera/parallel/data/engine.h"

namespace tessera::parallel {

/// The largest numbers of all parameters that are gathered in 8 bits, in one message.
void DataParallel::Engine::share_amax() {
  if (std::exchange(amax_is_shared, true)) return;
  for (const bool of_experts : {false, true}) {
    std::vector<FlatBuffer*> buffers;
    std::vector<torch::Tensor> parts;
    for (auto& unit : units) {
      for (auto& buffer : unit.buffers()) {
        if (!buffer.has_codes() || buffer.options().of_experts != of_experts) continue;
        buffers.push_back(&buffer);
        parts.push_back(buffer.amax());
      }
    }
    if (buffers.empty()) continue;
    const auto all = torch::cat(parts).to(axes.device);
    (of_experts ? axes.experts : axes).gather.all_reduce(all, comm::ReduceOp::max).wait();
    const auto largest = all.cpu();
    int64_t begin = 0;
    for (auto* buffer : buffers) {
      const auto count = static_cast<int64_t>(buffer->entries().size());
      buffer->share_amax(largest.narrow(0, begin, count));
      begin += count;
    }
  }
}

}  // namespace tessera::parallel
