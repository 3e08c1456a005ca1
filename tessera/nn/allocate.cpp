#include "tessera/nn/allocate.h"

#include <map>

#include "tessera/nn/replace_values.h"

namespace tessera::nn {

void allocate_parameters(torch::nn::Module& module, torch::Device device) {
  constexpr int64_t kAlignment = 64;
  const torch::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  const auto room_of = [](const torch::Tensor& parameter) {
    const int64_t unit = kAlignment / parameter.element_size();
    return (parameter.numel() + unit - 1) / unit * unit;
  };
  struct Block {
    int64_t size = 0, used = 0;
    torch::Tensor memory;
  };
  std::map<torch::Dtype, Block> blocks;
  for (const auto& parameter : parameters) {
    blocks[parameter.scalar_type()].size += room_of(parameter);
  }
  for (auto& [dtype, block] : blocks) {
    block.memory = torch::empty({block.size}, torch::dtype(dtype).device(device));
  }
  for (const auto& parameter : parameters) {
    auto& block = blocks.at(parameter.scalar_type());
    const auto values = block.memory.narrow(0, block.used, parameter.numel());
    replace_values(parameter, values.view(parameter.sizes()));
    block.used += room_of(parameter);
  }
}

}  // namespace tessera::nn
