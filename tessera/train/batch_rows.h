// What the Accelerator needs to know about a type of batch. Those of LibTorch's data loaders are
// here; specialise BatchRows for your own.
#pragma once

#include <ATen/ops/cat.h>
#include <torch/data/example.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera {

/// Rows are examples: the first dimension of every tensor.
template <typename Batch>
struct BatchRows;

template <>
struct BatchRows<torch::Tensor> {
  static int64_t count(const torch::Tensor& batch) { return batch.size(0); }
  static torch::Tensor slice(const torch::Tensor& batch, int64_t begin, int64_t end) {
    return batch.slice(0, begin, end);
  }
  static torch::Tensor join(const std::vector<torch::Tensor>& parts) { return at::cat(parts); }
  /// Makes room for `rows` elements, where a batch has elements rather than tensors of rows.
  static void resize(torch::Tensor&, int64_t) {}
  template <typename F>
  static void for_each_tensor(torch::Tensor& batch, const F& f) {
    f(batch);
  }
};

template <typename Data, typename Target>
struct BatchRows<torch::data::Example<Data, Target>> {
  using Batch = torch::data::Example<Data, Target>;

  static int64_t count(const Batch& batch) { return BatchRows<Data>::count(batch.data); }
  static Batch slice(const Batch& batch, int64_t begin, int64_t end) {
    return {BatchRows<Data>::slice(batch.data, begin, end),
            BatchRows<Target>::slice(batch.target, begin, end)};
  }
  static Batch join(const std::vector<Batch>& parts) {
    std::vector<Data> data;
    std::vector<Target> targets;
    for (const auto& part : parts) data.push_back(part.data), targets.push_back(part.target);
    return {BatchRows<Data>::join(data), BatchRows<Target>::join(targets)};
  }
  static void resize(Batch& batch, int64_t rows) {
    BatchRows<Data>::resize(batch.data, rows);
    BatchRows<Target>::resize(batch.target, rows);
  }
  template <typename F>
  static void for_each_tensor(Batch& batch, const F& f) {
    BatchRows<Data>::for_each_tensor(batch.data, f);
    BatchRows<Target>::for_each_tensor(batch.target, f);
  }
};

template <typename Data>
struct BatchRows<torch::data::Example<Data, torch::data::example::NoTarget>> {
  using Batch = torch::data::Example<Data, torch::data::example::NoTarget>;

  static int64_t count(const Batch& batch) { return BatchRows<Data>::count(batch.data); }
  static Batch slice(const Batch& batch, int64_t begin, int64_t end) {
    return {BatchRows<Data>::slice(batch.data, begin, end)};
  }
  static Batch join(const std::vector<Batch>& parts) {
    std::vector<Data> data;
    for (const auto& part : parts) data.push_back(part.data);
    return {BatchRows<Data>::join(data)};
  }
  static void resize(Batch& batch, int64_t rows) { BatchRows<Data>::resize(batch.data, rows); }
  template <typename F>
  static void for_each_tensor(Batch& batch, const F& f) {
    BatchRows<Data>::for_each_tensor(batch.data, f);
  }
};

/// A batch that no transform stacked: a list of examples.
template <typename Element>
struct BatchRows<std::vector<Element>> {
  using Batch = std::vector<Element>;

  static int64_t count(const Batch& batch) { return std::ssize(batch); }
  static Batch slice(const Batch& batch, int64_t begin, int64_t end) {
    return {batch.begin() + begin, batch.begin() + end};
  }
  static Batch join(const std::vector<Batch>& parts) {
    Batch all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  static void resize(Batch& batch, int64_t rows) { batch.resize(static_cast<size_t>(rows)); }
  template <typename F>
  static void for_each_tensor(Batch& batch, const F& f) {
    for (auto& element : batch) BatchRows<Element>::for_each_tensor(element, f);
  }
};

}  // namespace tessera
