// Residual networks for images (He et al., CVPR 2016), with torchvision's parameter names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/nn/batch_norm.h"
#include "tessera/nn/convolution.h"
#include "tessera/nn/layers.h"

namespace tessera::testing {

/// basic: two 3x3 convolutions. bottleneck: 1x1, 3x3, 1x1 with four times as many channels at the
/// end; the 3x3 has the stride ("v1.5", as torchvision).
enum class ResNetBlockType { basic, bottleneck };

/// cifar: one 3x3 convolution. imagenet: 7x7 and max-pooling, each halving the image.
enum class ResNetStem { cifar, imagenet };

struct ResNetShape {
  ResNetBlockType block = ResNetBlockType::basic;
  ResNetStem stem = ResNetStem::cifar;
  std::vector<int64_t> blocks_per_stage = {3, 3, 3};
  int64_t width = 16;  ///< channels of the first stage; each stage doubles them
  int64_t in_channels = 3;
  int64_t num_classes = 10;
};

ResNetShape resnet20_shape();  ///< for CIFAR (section 4.2): 272,474 parameters
ResNetShape resnet50_shape();  ///< for ImageNet: 25,557,032 parameters

/// Convolutions with batch norms, and a shortcut around them: the input itself or, where channels
/// or size change, a 1x1 convolution with a batch norm (the paper's option B).
class ResNetBlockImpl : public nn::Hookable {
 public:
  ResNetBlockImpl(ResNetBlockType type, int64_t in_channels, int64_t channels, int64_t stride,
                  const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x);  ///< [B, I, Y, X] -> [B, O, Y/stride, X/stride]

  int64_t out_channels() const { return out_channels_; }

 private:
  int64_t out_channels_;
  std::vector<nn::Conv2d> convolutions_;
  std::vector<nn::BatchNorm> norms_;
  nn::Conv2d shortcut_convolution_{nullptr};
  nn::BatchNorm shortcut_norm_{nullptr};
};
using ResNetBlock = nn::Hooked<ResNetBlockImpl>;

class ResNet : public nn::Hookable {
 public:
  explicit ResNet(const ResNetShape& shape, const torch::TensorOptions& options = {});

  torch::Tensor forward(const torch::Tensor& images);  ///< [B, C, Y, X] -> logits [B, num_classes]

 private:
  bool imagenet_stem_;
  nn::Conv2d conv1_;
  nn::BatchNorm bn1_;
  std::vector<std::pair<std::string, ResNetBlock>> blocks_;
  nn::Linear fc_{nullptr};
};

/// Fills every parameter from (seed, name, position), the same bits on any rank: convolutions with
/// variance 2 / fan-out (He et al., ICCV 2015), batch norms with 1 and 0, the last layer with
/// variance 1 / (3 fan-in) and bias 0.
void initialise(ResNet& model, int64_t seed);

}  // namespace tessera::testing
