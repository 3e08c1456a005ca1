// Weights of Hugging Face folders into a model's parameters.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/stripe.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The stored weights of a model: a folder with model.safetensors or model.safetensors.index.json,
/// or one such file. Stored names may lack a leading "transformer." (GPT-2 on the Hub). With the
/// config.json of a family that stores parameters together (Phi-3, experts), each is found in what holds it.
/// Stored tensors that no parameter takes are left alone: note_of_unread().
class Pretrained {
 public:
  /// Maps the files and checks every parameter of `model`, whose device may be meta. UserError
  /// names the first parameter that is missing or has another shape.
  Pretrained(const torch::nn::Module& model, const std::filesystem::path& path);
  /// The same of tensors that are opened already, under our names.
  Pretrained(const torch::nn::Module& model, std::shared_ptr<const TensorSource> stored);

  /// UserError unless there is a tensor `name` of this shape.
  void expect(const std::string& name, torch::IntArrayRef shape) const;
  bool contains(const std::string& name) const;  ///< of a tensor that is no parameter

  /// A line that names stored tensors with no place in the model, so that its results are others' than those of whoever
  /// stored them; empty: there are none. Biases of routers have a place, and tied heads, attention masks, tables and blocks
  /// behind the last are not missed.
  std::string note_of_unread() const;

  /// Elements begin .. of those that `stripe` takes of the parameter `name` (row-major) into `part`
  /// [n], whatever the dtypes. Reads these bytes alone.
  void copy_part(const std::string& name, int64_t begin, const torch::Tensor& part,
                 const Stripe& stripe = {}) const;

 private:
  std::shared_ptr<const TensorSource> stored_;
  std::vector<std::string> unread_;
};

/// The same for every parameter of `model`. Memory: none beside the mapped file.
void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path);

}  // namespace tessera::checkpoint
