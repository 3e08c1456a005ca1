// Copies between a device and its host that are as late as a GPU's may be, with CPU tensors: for use before completion.
#pragma once

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/kernels/copy_queue.h"

namespace tessera::testing {

using Log = std::vector<std::string>;

/// At wait() or finish(), and so is what comes after them. Until then results are NaN, sources must stay as they are, and
/// both must be held by somebody.
class LateCopies : public kernels::CopyQueue {
 public:
  LateCopies(std::string name, Log& log) : name_(std::move(name)), log_(log) {}

  void start(const at::Tensor& to, const at::Tensor& from) override {
    ASSERT_EQ(to.numel(), from.numel());
    ASSERT_TRUE(to.is_contiguous() && from.is_contiguous());
    std::memset(to.data_ptr(), 255, to.nbytes());
    const auto bytes = bytes_of(of(from));
    waiting_.push_back([to = of(to), from = of(from), bytes] { copy(to, from, bytes); });
    log_.push_back(name_);
  }
  void after(std::function<void()> work) override { waiting_.push_back(std::move(work)); }
  void wait() override {
    if (!waiting_.empty()) log_.push_back("wait " + name_);
    do_all();
  }
  void finish() override {
    log_.push_back("finish " + name_);
    do_all();
  }

 private:
  struct Place {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    size_t begin, size;  // bytes
    at::ScalarType dtype;
  };

  static Place of(const at::Tensor& tensor) {
    return {tensor.storage().getWeakStorageImpl(),
            static_cast<size_t>(tensor.storage_offset()) * tensor.element_size(), tensor.nbytes(),
            tensor.scalar_type()};
  }
  static bool has_memory(const Place& place) {
    return !place.storage.expired() && place.storage.lock()->data() != nullptr;
  }
  static char* data_of(const Place& place) {
    return static_cast<char*>(place.storage.lock()->mutable_data()) + place.begin;
  }
  static std::vector<char> bytes_of(const Place& place) {  // not a tensor's: those are counted
    return {data_of(place), data_of(place) + place.size};
  }

  static void copy(const Place& to, const Place& from, std::vector<char> bytes) {
    ASSERT_TRUE(has_memory(to) && has_memory(from)) << "memory was freed too early";
    EXPECT_TRUE(bytes_of(from) == bytes) << "a source was written while it was copied";
    const auto numbers = [](char* data, const Place& place) {
      const auto count = static_cast<int64_t>(place.size / c10::elementSize(place.dtype));
      return at::from_blob(data, {count}, place.dtype);
    };
    numbers(data_of(to), to).copy_(numbers(bytes.data(), from));
  }
  void do_all() {
    for (const auto& each : std::exchange(waiting_, {})) each();
  }

  std::string name_;
  Log& log_;
  std::vector<std::function<void()>> waiting_;
};

/// Queues with these names, one after the other; the log must outlive them.
inline kernels::MakeCopyQueue late_copies(std::vector<std::string> names, Log& log) {
  return [names = std::move(names), &log, made = size_t{0}](at::Device) mutable {
    return std::make_unique<LateCopies>(names.at(made++ % names.size()), log);
  };
}

/// Nothing is late, and nobody looks.
inline std::unique_ptr<kernels::CopyQueue> copies_at_once(at::Device) {
  struct AtOnce : kernels::CopyQueue {
    void start(const at::Tensor& to, const at::Tensor& from) override { to.copy_(from); }
    void after(std::function<void()> work) override { work(); }
    void wait() override {}
    void finish() override {}
  };
  return std::make_unique<AtOnce>();
}

}  // namespace tessera::testing
