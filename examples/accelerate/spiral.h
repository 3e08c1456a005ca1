// The problem of the two loops: which of three arms of a spiral does a point lie on?
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <numbers>

#include "tessera/nn/hooked.h"

struct LayerImpl : tessera::nn::Hookable {  // [B, 64] -> [B, 64]; Hookable: can be a unit of FSDP
  LayerImpl() { register_module("up", up), register_module("down", down); }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(at::gelu(up(x))); }
  torch::nn::Linear up{64, 128}, down{128, 64};
};

struct NetImpl : tessera::nn::Hookable {  // points [B, 2] -> logits of the arm [B, 3]
  NetImpl() {
    register_module("in", in), register_module("out", out);
    register_module("first", first), register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(second(first(in(x)))); }
  torch::nn::Linear in{2, 64}, out{64, 3};
  tessera::nn::Hooked<LayerImpl> first, second;
};
using Net = tessera::nn::Hooked<NetImpl>;

class Spiral : public torch::data::datasets::Dataset<Spiral> {
 public:
  explicit Spiral(size_t size) : size_(size) {}
  torch::data::Example<> get(size_t index) override {
    const auto arm = static_cast<int64_t>(index % 3);
    const double t = static_cast<double>(index) / static_cast<double>(size_);
    const double angle = 4 * t + 2 * std::numbers::pi / 3 * static_cast<double>(arm);
    return {torch::tensor({t * std::cos(angle), t * std::sin(angle)}, torch::kFloat32),
            torch::scalar_tensor(arm, torch::kInt64)};
  }
  torch::optional<size_t> size() const override { return size_; }

 private:
  size_t size_;
};
