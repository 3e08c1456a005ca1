// On their way to the host and back tensors pass the computation by: what a block kept leaves while the next block's
// forward runs, and comes while the backward of the block after it does.
#include <ATen/ops/empty_like.h>

#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "tessera/memory/activation_store.h"
#include "tessera/memory/stretches.h"

namespace tessera::memory {
namespace {

using at::Tensor;
using kernels::CopyQueue;
using kernels::MakeCopyQueue;

/// Lists of tensors in the host's memory, of which one may be leaving the device and one arriving there.
class PinnedStack {
 public:
  explicit PinnedStack(MakeCopyQueue make) : make_(std::move(make)) {}
  ~PinnedStack() {
    try {
      if (leaving_) out_->wait();
      if (arriving_) in_->wait();
    } catch (const std::exception&) {  // the device is lost, and with it all that is there
    }
  }
  PinnedStack(const PinnedStack&) = delete;
  PinnedStack& operator=(const PinnedStack&) = delete;

  uint64_t put(std::vector<Tensor> stretches) {
    const std::lock_guard lock(mutex_);
    check_device(stretches);
    settle_dropped();
    finish_leaving();
    auto& entry = entries_[++last_id_];
    for (const auto& stretch : stretches) {
      const auto options = stretch.options().device(at::kCPU).pinned_memory(stretch.is_cuda());
      entry.host.push_back(at::empty_like(stretch, options));
      entry.versions.push_back(stretch._version());
      out_->start(entry.host.back(), stretch);
    }
    if (!stretches.empty()) leaving_ = last_id_;
    entry.on_device = std::move(stretches);
    return last_id_;
  }

  std::vector<Tensor> fetch(uint64_t id) {
    const std::lock_guard lock(mutex_);
    settle_dropped();
    auto& entry = entries_.at(id);
    entry.was_fetched = true;
    if (entry.host.empty()) return {};
    auto result = leaving_ == id ? finish_leaving() : finish_arriving(id);
    if (!arriving_) begin_next(id);
    return result;
  }

  /// What is copied from or to is no free memory yet: the next put() or fetch() sees to it.
  void drop(uint64_t id) {
    const std::lock_guard lock(mutex_);
    if (leaving_ == id || arriving_ == id) {
      entries_.at(id).dropped = true;
    } else {
      entries_.erase(id);
    }
  }

 private:
  struct Entry {
    std::vector<Tensor> host;
    std::vector<Tensor> on_device;  // while it leaves or arrives
    std::vector<uint32_t> versions;
    bool was_fetched = false, dropped = false;
  };

  void check_device(const std::vector<Tensor>& stretches) {
    for (const auto& stretch : stretches) {
      if (!device_) {
        out_ = make_(stretch.device()), in_ = make_(stretch.device());
        device_ = stretch.device();
      }
      TORCH_CHECK_VALUE(stretch.device() == *device_, "offload: expected activations on ", *device_,
                        ", got some on ", stretch.device(), "; set offload = nullptr");
    }
  }

  /// The entry is on the device no more, but for who has these tensors.
  std::vector<Tensor> settle(std::optional<uint64_t>& moving) {
    const auto found = entries_.find(*moving);
    auto tensors = std::exchange(found->second.on_device, {});
    if (found->second.dropped) entries_.erase(found);
    moving.reset();
    return tensors;
  }

  void settle_dropped() {
    const auto is_dropped = [this](const auto& moving) {
      return moving && entries_.at(*moving).dropped;
    };
    if (is_dropped(leaving_)) out_->wait(), settle(leaving_);
    if (is_dropped(arriving_)) in_->wait(), settle(arriving_);
  }

  std::vector<Tensor> finish_leaving() {
    if (!leaving_) return {};
    out_->wait();
    const auto& entry = entries_.at(*leaving_);
    for (size_t i = 0; i < entry.on_device.size(); ++i) {
      // The copy may have read the one value or the other. It stays until its graph goes, so that nobody takes it.
      TORCH_CHECK_VALUE(entry.on_device[i]._version() == entry.versions[i],
                        "offload: expected what a checkpointed module keeps to stay as it is until "
                        "the next one has run, got a change in place");
    }
    return settle(leaving_);
  }

  void begin_arriving(uint64_t id) {
    auto& entry = entries_.at(id);
    for (const auto& host : entry.host) {
      const auto options = host.options().pinned_memory(false).device(*device_);
      entry.on_device.push_back(at::empty_like(host, options));
      in_->start(entry.on_device.back(), host);
    }
    arriving_ = id;
  }

  std::vector<Tensor> finish_arriving(uint64_t id) {
    if (arriving_ && *arriving_ != id) in_->wait(), settle(arriving_);  // it comes once more
    if (!arriving_) begin_arriving(id);
    in_->wait();
    return settle(arriving_);
  }

  /// The backward that comes next is that of the forward before.
  void begin_next(uint64_t id) {
    for (auto next = entries_.find(id); next != entries_.begin();) {
      --next;
      if (next->second.was_fetched || next->second.host.empty()) continue;
      if (leaving_ != next->first) begin_arriving(next->first);
      return;
    }
  }

  std::mutex mutex_;
  MakeCopyQueue make_;
  std::optional<at::Device> device_;
  std::unique_ptr<CopyQueue> out_, in_;
  std::map<uint64_t, Entry> entries_;  // by order of put()
  uint64_t last_id_ = 0;
  std::optional<uint64_t> leaving_, arriving_;
};

class PinnedTensors : public StoredTensors {
 public:
  PinnedTensors(std::shared_ptr<PinnedStack> stack, const std::vector<Tensor>& tensors)
      : stack_(std::move(stack)), stretches_(tensors), id_(stack_->put(stretches_.take())) {}
  ~PinnedTensors() override { stack_->drop(id_); }
  PinnedTensors(const PinnedTensors&) = delete;
  PinnedTensors& operator=(const PinnedTensors&) = delete;

  std::vector<Tensor> tensors() override { return stretches_.tensors_in(stack_->fetch(id_)); }

 private:
  std::shared_ptr<PinnedStack> stack_;
  Stretches stretches_;
  uint64_t id_;
};

class PinnedStore : public ActivationStore {
 public:
  explicit PinnedStore(MakeCopyQueue make)
      : stack_(std::make_shared<PinnedStack>(std::move(make))) {}
  std::shared_ptr<StoredTensors> put(const std::vector<Tensor>& tensors) override {
    return std::make_shared<PinnedTensors>(stack_, tensors);
  }

 private:
  std::shared_ptr<PinnedStack> stack_;
};

std::unique_ptr<CopyQueue> queue_of_gpu(at::Device device) {
  TORCH_CHECK_VALUE(device.is_cuda(), "offload: expected activations on CUDA, got some on ", device,
                    "; set offload = nullptr");
  return kernels::copy_queue(device);
}

}  // namespace

std::shared_ptr<ActivationStore> pinned_store(MakeCopyQueue make) {
  return std::make_shared<PinnedStore>(make ? std::move(make) : queue_of_gpu);
}

}  // namespace tessera::memory
