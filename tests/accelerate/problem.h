// What the programs of this folder share: how results are written down, and a small problem whose
// values are a formula, so that the programs in C++ and Python (problem.py) have the same.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <vector>

#include "tessera/train/accelerator.h"

namespace problem {

using tessera::Accelerator;
using tessera::AcceleratorOptions;
using Numbers = std::vector<double>;

inline std::vector<std::string> lines;  ///< of rank 0's file

inline void add(Numbers& numbers, double value) { numbers.push_back(value); }
inline void add(Numbers& numbers, const Numbers& values) {
  numbers.insert(numbers.end(), values.begin(), values.end());
}
inline void add(Numbers& numbers, const torch::Tensor& value) {
  const auto flat = value.detach().to(torch::kFloat64).flatten().contiguous();
  const auto* data = flat.const_data_ptr<double>();
  numbers.insert(numbers.end(), data, data + flat.numel());
}
inline void add(Numbers& numbers, torch::IntArrayRef sizes) {
  for (const auto size : sizes) numbers.push_back(static_cast<double>(size));
}

template <typename... Values>
Numbers numbers_of(const Values&... values) {
  Numbers numbers;
  (add(numbers, values), ...);
  return numbers;
}

/// Values of this rank: numbers, or tensors of them. Rank 0's are written.
template <typename... Values>
void say(const Accelerator* accelerator, const std::string& name, const Values&... values) {
  if (accelerator != nullptr && !accelerator->is_main_process()) return;
  std::string line = name + ":";
  for (const auto number : numbers_of(values...)) line += fmt::format(" {:.17g}", number);
  lines.push_back(line);
}

/// Values of every rank, in order.
template <typename... Values>
void say_all(const Accelerator& accelerator, const std::string& name, const Values&... values) {
  say(&accelerator, name, accelerator.gather_object(numbers_of(values...)));
}

// ---- the problem -------------------------------------------------------------------------------

inline torch::Tensor formula(const std::vector<int64_t>& shape, double phase = 0) {
  int64_t count = 1;
  for (const auto size : shape) count *= size;
  const auto at = torch::arange(count, torch::kFloat64) * 0.7 + phase;
  return (torch::sin(at) * 0.5).to(torch::kFloat32).reshape(shape);
}

class Rows : public torch::data::Dataset<Rows> {
 public:
  explicit Rows(int64_t count) : data_(formula({count, 4}, 1)), target_(formula({count, 2}, 2)) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {data_[i], target_[i]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(data_.size(0)); }

 private:
  torch::Tensor data_, target_;
};

inline auto make_loader(int64_t rows, int64_t batch_size, bool drop_last = false,
                        size_t workers = 0) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Rows(rows).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions(static_cast<size_t>(batch_size))
          .drop_last(drop_last)
          .workers(workers));
}

/// Two layers and a branch that no loss reaches.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool with_norm = false, bool with_unused = false) {
    register_module("first", first);
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(6));
    register_module("second", second);
    if (with_unused) unused = register_module("unused", torch::nn::Linear(3, 3));
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (auto& parameter : parameters()) parameter.copy_(formula(parameter.sizes().vec(), phase++));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = first(x);
    if (norm) hidden = norm(hidden);
    return second(torch::tanh(hidden));
  }
  torch::nn::Linear first{4, 6}, second{6, 2}, unused = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};
TORCH_MODULE(Net);

inline torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return (output - target).square().mean();
}

inline torch::Tensor weights(const Net& net) {
  std::vector<torch::Tensor> flat;
  for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

/// On rank 0: the file of all results. Gives the program's exit status.
inline int write_lines(const Accelerator& accelerator, const char* path) {
  if (!accelerator.is_main_process()) return 0;
  std::ofstream file(path);
  for (const auto& line : lines) file << line << "\n";
  return file.flush() ? 0 : 1;
}

}  // namespace problem
