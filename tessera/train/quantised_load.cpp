#include "tessera/train/quantised_load.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tessera/kernels/quantised.h"

namespace tessera::train {
namespace {

using Fill = parallel::FlatBuffer::Fill;
using Parts = std::vector<torch::Tensor>;  // of one layer, flat, as quantised_parts lists them

kernels::Quantised quantise(const nn::QuantisedLayer& layer, const Fill& fill) {
  const auto name = layer.path + ".weight";
  const auto& shape = layer.shape;
  if (layer.layout == nn::WeightLayout::out_in) {
    return kernels::quantise(
        shape, [&](int64_t begin, const torch::Tensor& part) { fill(name, begin, part); });
  }
  const auto stored = torch::empty({shape.in, shape.out});
  fill(name, 0, stored.view({-1}));
  return kernels::quantise(stored.t(), shape.format, shape.block);
}

Parts parts_of(const nn::QuantisedLayer& layer, const Fill& fill) {
  const auto weight = quantise(layer, fill);
  Parts parts = {weight.codes.flatten(), weight.absmax.flatten()};
  if (weight.nested_absmax.defined()) {
    parts.push_back(weight.nested_absmax.flatten());
    parts.push_back(weight.nested_offset.flatten());
  }
  return parts;
}

/// Weights as their codes say them.
class DequantisingFill {
 public:
  DequantisingFill(Fill fill, const std::vector<nn::QuantisedLayer>& layers)
      : fill_(std::move(fill)) {
    for (const auto& layer : layers) layers_.emplace(layer.path + ".weight", layer);
  }

  void operator()(const std::string& name, int64_t begin, torch::Tensor part) {
    const auto found = layers_.find(name);
    if (found == layers_.end()) return fill_(name, begin, part);
    if (last_ != name) {
      weight_ = quantise(found->second, fill_);
      const bool is_turned = found->second.layout == nn::WeightLayout::in_out;
      turned_ = is_turned ? kernels::dequantise(weight_, torch::kFloat32).t().contiguous()
                          : torch::Tensor();
      last_ = name;
    }
    if (turned_.defined()) {
      part.copy_(turned_.view({-1}).narrow(0, begin, part.numel()));
      return;
    }
    const int64_t in = weight_.shape.in, first = begin / in;
    const auto rows =
        kernels::dequantise_rows(weight_, first, (begin + part.numel() + in - 1) / in);
    part.copy_(rows.view({-1}).narrow(0, begin - first * in, part.numel()));
  }

 private:
  Fill fill_;
  std::map<std::string, nn::QuantisedLayer> layers_;
  std::string last_;
  kernels::Quantised weight_;
  torch::Tensor turned_;
};

/// Fills parts of quantised layers, each of which is made once as long as its parts are asked for
/// one after the other. Nested states, which are small and may lie in a buffer of their own, stay.
class QuantisingFill {
 public:
  QuantisingFill(Fill fill, const std::vector<nn::QuantisedLayer>& layers)
      : fill_(std::move(fill)), layers_(layers) {
    for (const auto& layer : layers_) {
      const auto parts = quantised_parts(layer.shape);
      for (size_t i = 0; i < parts.size(); ++i) {
        places_.emplace(layer.path + "." + parts[i].name, Place{&layer, i});
      }
    }
  }
  QuantisingFill(const QuantisingFill&) = delete;
  QuantisingFill& operator=(const QuantisingFill&) = delete;

  void operator()(const std::string& name, int64_t begin, const torch::Tensor& part) {
    const auto found = places_.find(name);
    if (found == places_.end()) return fill_(name, begin, part);
    const auto [layer, index] = found->second;
    auto to = part;
    to.copy_(made(*layer, index).narrow(0, begin, part.numel()));
  }

 private:
  struct Place {
    const nn::QuantisedLayer* layer;
    size_t part;
  };

  const torch::Tensor& made(const nn::QuantisedLayer& layer, size_t part) {
    const auto stays = nested_.find(&layer);
    if (part >= 2 && stays != nested_.end()) return stays->second.at(part - 2);
    if (last_ != &layer) {
      parts_.clear();
      parts_ = parts_of(layer, fill_);
      last_ = &layer;
      nested_[&layer] = Parts(parts_.begin() + 2, parts_.end());
    }
    return parts_.at(part);
  }

  Fill fill_;
  std::vector<nn::QuantisedLayer> layers_;
  std::map<std::string, Place> places_;
  const nn::QuantisedLayer* last_ = nullptr;
  Parts parts_;
  std::map<const nn::QuantisedLayer*, Parts> nested_;
};

}  // namespace

Fill quantised(Fill fill, const std::vector<nn::QuantisedLayer>& layers) {
  if (layers.empty()) return fill;
  const auto state = std::make_shared<QuantisingFill>(std::move(fill), layers);
  return [state](const std::string& name, int64_t begin, const torch::Tensor& part) {
    (*state)(name, begin, part);
  };
}

Fill dequantised(Fill fill, const std::vector<nn::QuantisedLayer>& layers) {
  if (layers.empty()) return fill;
  const auto state = std::make_shared<DequantisingFill>(std::move(fill), layers);
  return [state](const std::string& name, int64_t begin, const torch::Tensor& part) {
    (*state)(name, begin, part);
  };
}

}  // namespace tessera::train
