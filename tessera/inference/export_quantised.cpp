#include "tessera/inference/export_quantised.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/formats/hf_export.h"
#include "tessera/checkpoint/formats/training_source.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/kernels/quantised.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/quantised_weight.h"

namespace tessera::inference {
namespace {

using checkpoint::DType;
using checkpoint::TensorSource;
using nlohmann::ordered_json;

constexpr int64_t kBlock = 64;

/// The dtype that values have once they are dequantised, of which bitsandbytes has no wider one.
std::string torch_name(DType stored) {
  return checkpoint::config_name(stored == DType::f64 ? DType::f32 : stored);
}

/// The file's name of the type: double quantisation is said by nested states.
std::string bits_of(WeightFormat format) { return format == WeightFormat::fp4 ? "fp4" : "nf4"; }

/// Stored tensors, some of them quantised.
class QuantisedSource : public TensorSource {
 public:
  QuantisedSource(const TensorSource& stored, const std::set<std::string>& weights,
                  WeightFormat format)
      : TensorSource(stored.path()), stored_(stored), format_(format) {
    tensors_ = stored.tensors();
    for (const auto& weight : weights) add(weight);
  }

 private:
  using Parts = std::map<std::string, torch::Tensor>;  // by what follows the weight's name

  QuantisedShape shape_of(const std::string& weight) const {
    const auto& info = stored_.info(weight);
    return {.format = format_, .out = info.shape[0], .in = info.shape[1], .block = kBlock};
  }

  void add(const std::string& weight) {
    const auto& info = stored_.info(weight);
    if (info.shape.size() != 2 || !checkpoint::is_float(info.dtype)) {
      user_error("{}: '{}': expected a matrix of floats to quantise", path_.string(), weight);
    }
    // Shapes alone: the values come when they are asked for.
    const auto put = [&](const std::string& name, DType dtype, std::vector<int64_t> shape) {
      tensors_[name] = {dtype, std::move(shape)};
      of_weight_[name] = weight;
    };
    if (format_ == WeightFormat::int8) {
      const auto layer = weight.substr(0, weight.rfind('.'));
      put(weight, DType::i8, info.shape);
      put(layer + ".SCB", DType::f32, {info.shape[0]});
      put(layer + ".weight_format", DType::u8, {});
      return;
    }
    const int64_t elements = info.num_elements(), blocks = (elements + kBlock - 1) / kBlock;
    const bool nested = format_ == WeightFormat::nf4_double;
    put(weight, DType::u8, {(elements + 1) / 2, 1});
    put(weight + ".absmax", nested ? DType::u8 : DType::f32, {blocks});
    put(weight + ".quant_map", DType::f32, {16});
    if (nested) {
      put(weight + ".nested_absmax", DType::f32, {(blocks + kNestedBlock - 1) / kNestedBlock});
      put(weight + ".nested_quant_map", DType::f32, {256});
    }
    // The state of double quantisation has a number whose text is as long as its value wants.
    put(state_name(weight), DType::u8,
        {nested ? std::ssize(state_of(weight, part_of(weight, "offset").item<float>()))
                : std::ssize(state_of(weight, 0))});
  }

  std::string state_name(const std::string& weight) const {
    return weight + ".quant_state.bitsandbytes__" + bits_of(format_);
  }

  std::string state_of(const std::string& weight, float offset) const {
    const auto& info = stored_.info(weight);
    ordered_json state{{"quant_type", bits_of(format_)},
                       {"blocksize", kBlock},
                       {"dtype", torch_name(info.dtype)},
                       {"shape", info.shape}};
    if (format_ == WeightFormat::nf4_double) {
      state["nested_blocksize"] = kNestedBlock;
      state["nested_dtype"] = "float32";
      state["nested_offset"] = offset;
    }
    return state.dump();
  }

  Parts quantise(const std::string& weight) const {
    const auto made = kernels::quantise(shape_of(weight), [&](int64_t begin, const auto& part) {
      checkpoint::read_into(stored_, weight, begin, part);
    });
    Parts parts{{"codes", made.codes.flatten()}, {"absmax", made.absmax.flatten()}};
    if (made.nested_absmax.defined()) {
      parts["nested"] = made.nested_absmax.flatten();
      parts["offset"] = made.nested_offset.flatten().view(torch::kFloat32);
    }
    return parts;
  }

  const torch::Tensor& part_of(const std::string& weight, const std::string& part) const {
    if (last_ != weight) parts_ = quantise(weight), last_ = weight;
    return parts_.at(part);
  }

  /// The bytes of one of the tensors that stand for `weight`.
  torch::Tensor bytes_of(const std::string& name, const std::string& weight) const {
    const auto of_text = [](const std::string& text) {
      auto bytes = torch::empty({std::ssize(text)}, torch::kByte);
      std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
      return bytes;
    };
    if (name == weight) return part_of(weight, "codes");
    if (name.ends_with(".weight_format")) return torch::zeros({1}, torch::kByte);  // by rows
    if (name.ends_with(".nested_absmax")) return part_of(weight, "nested");
    if (name.ends_with(".nested_quant_map")) {
      return kernels::dynamic_map(/*is_signed=*/true).contiguous().view(torch::kByte);
    }
    if (name.ends_with(".quant_map")) return kernels::values_of_codes(format_).view(torch::kByte);
    if (name == state_name(weight)) {
      const bool nested = format_ == WeightFormat::nf4_double;
      return of_text(state_of(weight, nested ? part_of(weight, "offset").item<float>() : 0));
    }
    return part_of(weight, "absmax");  // .absmax, .SCB
  }

  void read_part(const std::string& name, const checkpoint::TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    const auto found = of_weight_.find(name);
    if (found == of_weight_.end()) return stored_.read(name, begin, destination);
    const std::lock_guard lock(mutex_);
    const auto bytes = bytes_of(name, found->second);
    std::memcpy(destination.data(),
                bytes.const_data_ptr<uint8_t>() + begin * checkpoint::dtype_bytes(info.dtype),
                destination.size());
  }

  const TensorSource& stored_;
  WeightFormat format_;
  std::map<std::string, std::string> of_weight_;  // each tensor that stands for one, and which
  mutable std::mutex mutex_;
  mutable std::string last_;  // the weight that was quantised last
  mutable Parts parts_;
};

/// The stored weights of the linear layers in blocks.
std::set<std::string> linear_weights(const models::ModelShape& shape, const nlohmann::json& config,
                                     const std::string& where) {
  if (shape.experts.num > 0) {
    user_error(
        "{}: it has experts, of which transformers 5 keeps those of a layer in one tensor, and "
        "bitsandbytes none in codes; export it without --weights",
        where);
  }
  const auto model =
      models::make_language_model(shape, torch::dtype(torch::kFloat32).device(torch::kMeta));
  const checkpoint::FamilyNames names(config, where);
  std::set<std::string> weights;
  for (const auto& layer :
       nn::quantise_linear_layers(*model, model->layout().layers, {.format = WeightFormat::int8})) {
    if (layer.layout == nn::WeightLayout::in_out) {
      user_error(
          "{}: its matrices lie the other way around (GPT-2's Conv1D), which no quantised folder "
          "has; export it without --weights",
          where);
    }
    weights.insert(names.stored(layer.path + ".weight"));
  }
  return weights;
}

/// What transformers 5 writes for such a model.
nlohmann::json quantization_config(WeightFormat format, DType rest) {
  const bool four = format != WeightFormat::int8;
  return {{"_load_in_4bit", four},
          {"_load_in_8bit", !four},
          {"bnb_4bit_compute_dtype", torch_name(rest)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", four ? bits_of(format) : "fp4"},
          {"bnb_4bit_use_double_quant", format == WeightFormat::nf4_double},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", nullptr},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", four},
          {"load_in_8bit", !four},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace

void export_quantised(const Request& request) {
  const auto training = checkpoint::open_training(
      {.source = request.model, .with_optimizer = false, .our_names = false});
  auto config = training.about.model;
  const auto shape = stored_shape(training, 1);
  if (config.contains("quantization_config")) {
    user_error("{}: config.json: quantization_config: the model is quantised already",
               request.model);
  }
  const auto weights = linear_weights(shape, config, request.model);
  config["quantization_config"] =
      quantization_config(request.weights, training.tensors.info(*weights.begin()).dtype);
  checkpoint::export_hf(
      QuantisedSource(training.tensors, weights, request.weights), request.other,
      {.config = std::move(config),
       .carry_from = request.tokenizer,
       .chat_template = request.chat_template.empty() ? "" : read_file(request.chat_template),
       .model_card = request.model_card});
}

}  // namespace tessera::inference
