#include "tests/support/late_backend.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "tessera/comm/queue.h"

namespace tessera {
namespace {

using Tensors = std::vector<at::Tensor>;
using GlooWork = c10::intrusive_ptr<c10d::Work>;
/// A collective of Gloo with these outputs and inputs.
using Collective = std::function<GlooWork(Tensors& outputs, Tensors& inputs)>;

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* begin = static_cast<const char*>(a.const_data_ptr());
  const auto* other = static_cast<const char*>(b.const_data_ptr());
  return begin < other + b.nbytes() && other < begin + a.nbytes();
}

/// What of a collective is left to do.
class LateWork : public c10d::Work {
 public:
  LateWork(Tensors outputs, Tensors inputs, std::atomic<bool>& failed)
      : outputs_(std::move(outputs)), inputs_(std::move(inputs)), failed_(failed) {
    for (const auto& input : inputs_) copied_inputs_.push_back(input.clone());
    for (const auto& output : outputs_) copied_outputs_.push_back(output.clone());
    for (const auto& input : inputs_) {
      bool is_output = false;
      for (const auto& output : outputs_) is_output = is_output || overlap(input, output);
      may_change_.push_back(is_output);
    }
    for (const auto& output : outputs_) std::memset(output.data_ptr(), 0xFF, output.nbytes());
  }

  void start(comm::Queue& queue, const Collective& collective) {
    // Its own tensors: a step that fails drops its works before they have run.
    done_ = queue.push([outputs = copied_outputs_, inputs = copied_inputs_, collective](
                           const comm::Deadline&) mutable { collective(outputs, inputs)->wait(); });
  }

  bool isCompleted() override { return false; }  // a host never knows in time

  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (done_.valid()) {
      done_.get();
    } else {
      failed_ = true;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (may_change_[i] || same_bytes(inputs_[i], copied_inputs_[i])) continue;
      std::fprintf(stderr, "late_backend: an input was changed before wait()\n");
      std::abort();
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      std::memcpy(outputs_[i].data_ptr(), copied_outputs_[i].const_data_ptr(),
                  outputs_[i].nbytes());
    }
    return true;
  }

 private:
  Tensors outputs_, inputs_, copied_outputs_, copied_inputs_;
  std::vector<bool> may_change_;
  std::future<void> done_;  // none: it fails
  std::atomic<bool>& failed_;
};

class LateBackend : public c10d::Backend {
 public:
  LateBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::function<bool()> fails)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        fails_(std::move(fails)) {}

  // NOLINTNEXTLINE(readability-const-return-type): as c10d declares it.
  const std::string getBackendName() const override { return "late"; }

  c10d::ErrorType getError() override {
    return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }

  GlooWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return late(tensors, tensors, [this, options](Tensors& outputs, Tensors& inputs) {
      outputs[0].copy_(inputs[0]);
      return gloo_->broadcast(outputs, options);
    });
  }

  GlooWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return late(tensors, tensors, [this, options](Tensors& outputs, Tensors& inputs) {
      outputs[0].copy_(inputs[0]);
      return gloo_->allreduce(outputs, options);
    });
  }

  GlooWork _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    return late({output}, {input}, [this, options](Tensors& outputs, Tensors& inputs) {
      return gloo_->_allgather_base(outputs[0], inputs[0], options);
    });
  }

  GlooWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::AllgatherOptions& options) override {
    return late(outputs[0], inputs, [this, options](Tensors& to, Tensors& from) {
      std::vector<Tensors> lists{to};
      return gloo_->allgather(lists, from, options);
    });
  }

  GlooWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return late({output}, {input}, [this, options](Tensors& outputs, Tensors& inputs) {
      return gloo_->_reduce_scatter_base(outputs[0], inputs[0], options);
    });
  }

  GlooWork scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                   const c10d::ScatterOptions& options) override {
    return late(outputs, inputs.empty() ? Tensors() : inputs[0],
                [this, options](Tensors& to, Tensors& from) {
                  std::vector<Tensors> lists;
                  if (!from.empty()) lists.push_back(from);
                  return gloo_->scatter(to, lists, options);
                });
  }

  GlooWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                         std::vector<int64_t>& sent,
                         const c10d::AllToAllOptions& options) override {
    return late({output}, {input},
                [this, options, received, sent](Tensors& outputs, Tensors& inputs) mutable {
                  return gloo_->alltoall_base(outputs[0], inputs[0], received, sent, options);
                });
  }

  void abort() override { gloo_->abort(); }
  void shutdown() override {}

 private:
  GlooWork late(Tensors outputs, Tensors inputs, const Collective& collective) {
    auto work = c10::make_intrusive<LateWork>(std::move(outputs), std::move(inputs), failed_);
    if (!fails_ || !fails_()) work->start(queue_, collective);
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::function<bool()> fails_;
  std::atomic<bool> failed_ = false;
  comm::Queue queue_{"late", std::chrono::seconds(60)};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> late_backend(const c10::intrusive_ptr<c10d::Backend>& gloo,
                                               std::function<bool()> fails) {
  return c10::make_intrusive<LateBackend>(gloo, std::move(fails));
}

}  // namespace tessera
