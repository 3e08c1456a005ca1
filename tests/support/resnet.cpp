#include "tests/support/resnet.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include <cmath>

#include "tessera/nn/initialise.h"

namespace tessera::testing {

using torch::Tensor;
using torch::TensorOptions;

namespace {

constexpr int64_t kExpansion = 4;  // of a bottleneck

nn::Conv2d make_convolution(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
                            int64_t stride, const TensorOptions& options) {
  return nn::Conv2d(
      in_channels, out_channels,
      nn::Conv2dOptions{
          .kernel_size = kernel_size, .stride = stride, .padding = (kernel_size - 1) / 2},
      options);
}

nn::BatchNorm make_norm(int64_t channels, const TensorOptions& options) {
  return nn::BatchNorm(channels, nn::BatchNormOptions{}, options);
}

}  // namespace

ResNetShape resnet20_shape() { return {}; }

ResNetShape resnet50_shape() {
  return {.block = ResNetBlockType::bottleneck,
          .stem = ResNetStem::imagenet,
          .blocks_per_stage = {3, 4, 6, 3},
          .width = 64,
          .num_classes = 1000};
}

ResNetBlockImpl::ResNetBlockImpl(ResNetBlockType type, int64_t in_channels, int64_t channels,
                                 int64_t stride, const TensorOptions& options)
    : out_channels_(type == ResNetBlockType::basic ? channels : kExpansion * channels) {
  const auto add = [&](int64_t in, int64_t out, int64_t kernel_size, int64_t its_stride) {
    convolutions_.push_back(make_convolution(in, out, kernel_size, its_stride, options));
    norms_.push_back(make_norm(out, options));
    const auto number = std::to_string(norms_.size());
    register_module("conv" + number, convolutions_.back());
    register_module("bn" + number, norms_.back());
  };
  if (type == ResNetBlockType::basic) {
    add(in_channels, channels, 3, stride);
    add(channels, channels, 3, 1);
  } else {
    add(in_channels, channels, 1, 1);
    add(channels, channels, 3, stride);
    add(channels, out_channels_, 1, 1);
  }
  if (stride == 1 && in_channels == out_channels_) return;
  shortcut_convolution_ = make_convolution(in_channels, out_channels_, 1, stride, options);
  shortcut_norm_ = make_norm(out_channels_, options);
  auto list = std::make_shared<torch::nn::Module>();
  list->register_module("0", shortcut_convolution_);
  list->register_module("1", shortcut_norm_);
  register_module("downsample", list);
}

Tensor ResNetBlockImpl::forward(const Tensor& x) {
  auto y = x;
  for (size_t i = 0; i < convolutions_.size(); ++i) {
    if (i > 0) y = at::relu(y);
    y = norms_[i](convolutions_[i](y));
  }
  return at::relu(y + (shortcut_norm_ ? shortcut_norm_(shortcut_convolution_(x)) : x));
}

ResNet::ResNet(const ResNetShape& shape, const TensorOptions& options)
    : imagenet_stem_(shape.stem == ResNetStem::imagenet),
      conv1_(make_convolution(shape.in_channels, shape.width, imagenet_stem_ ? 7 : 3,
                              imagenet_stem_ ? 2 : 1, options)),
      bn1_(make_norm(shape.width, options)) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  int64_t in_channels = shape.width, channels = shape.width;
  for (size_t stage = 0; stage < shape.blocks_per_stage.size(); ++stage, channels *= 2) {
    const auto name = "layer" + std::to_string(stage + 1);
    auto list = std::make_shared<torch::nn::Module>();
    for (int64_t i = 0; i < shape.blocks_per_stage[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      ResNetBlock block(shape.block, in_channels, channels, stride, options);
      in_channels = block->out_channels();
      list->register_module(std::to_string(i), block);
      blocks_.emplace_back(name + "." + std::to_string(i), block);
    }
    register_module(name, list);
  }
  fc_ = nn::Linear(in_channels, shape.num_classes, /*with_bias=*/true, options);
  register_module("fc", fc_);
}

Tensor ResNet::forward(const Tensor& images) {
  auto x = at::relu(bn1_(conv1_(images)));
  if (imagenet_stem_) x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  for (auto& [name, block] : blocks_) x = block(x);
  return fc_(x.flatten(2).mean(2));
}

void initialise(ResNet& model, int64_t seed) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* batch_norm = module->as<nn::BatchNormImpl>()) batch_norm->reset();
  }
  for (auto& item : model.named_parameters()) {
    const auto& name = item.key();
    auto& parameter = item.value();
    if (parameter.dim() == 4) {
      const auto fan_out = static_cast<double>(parameter.size(0) * parameter[0][0].numel());
      nn::fill_portable(parameter, name, seed, std::sqrt(2 / fan_out));
    } else if (name == "fc.weight") {
      nn::fill_portable(parameter, name, seed,
                        1 / std::sqrt(3 * static_cast<double>(parameter.size(1))));
    } else if (name == "fc.bias") {
      parameter.zero_();
    }
  }
}

}  // namespace tessera::testing
