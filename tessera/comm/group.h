// Collectives among the ranks of one axis.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/base/axes.h"
#include "tessera/comm/call.h"
#include "tessera/comm/choose.h"
#include "tessera/comm/counters.h"
#include "tessera/comm/gloo.h"
#include "tessera/comm/native.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/roll_call.h"

namespace tessera::comm {

class Deadline;

/// An operation that was started. Its tensors must not be touched before wait() returned.
/// Move-only. Destroyed without wait(), it waits and drops the error, which the group's next
/// operation repeats.
class [[nodiscard]] Work {
 public:
  Work();  ///< of a group of one rank: already done
  ~Work();
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Returns when the operation is done (on a GPU: ordered, see Group). Throws c10::DistError with
  /// one line, in which ranks are those of the run: "rank 1, axis dp: all_reduce of 4.0 MiB failed
  /// after 3.2 s: rank 0: connection closed by peer", ".. after 11.5 s: rank 3 did not come within
  /// 10 s; rank 2 waits for it" (see roll_call.h).
  void wait();

  bool done() const;  ///< never blocks; true once wait() would return at once

 private:
  friend class Group;
  struct Started;
  explicit Work(std::unique_ptr<Started> started);
  std::unique_ptr<Started> started_;
};

struct GroupOptions {
  std::string name;  ///< for messages and thread names
  /// The mesh's axes of more than one rank along which the group's ranks differ; and its channel,
  /// where such ranks have several groups.
  std::vector<mesh::AxisName> axes = {};
  std::string channel = {};
  int rank = 0;
  std::vector<int> ranks = {0};  ///< the group's, as the run counts them: what errors name
  std::shared_ptr<RollCall> roll_call = nullptr;  ///< the run's; of a group of one rank: none
  std::chrono::milliseconds timeout = std::chrono::seconds(600);  ///< of every operation
  Transport transport = {};
  c10::Device device = c10::kCPU;  ///< a GPU, the current one: its tensors are taken, too
};

/// A handle: copies are the same group. Ranks are counted within the group, but in errors within
/// the run.
///
/// Operations take contiguous tensors and are collective (all ranks, same order, same sizes). They
/// write straight to memory: tensors' version counters stay, autograd sees nothing. A group of one
/// rank copies input to output where they differ, and does nothing else. After a failure every
/// later operation of the group fails with the same error.
///
/// CPU tensors: operations start at once on a thread of the group's own and run one after the
/// other; what was started overlaps with the caller's work. Results are the same bits on all ranks
/// and in every run; bf16 and fp16 add up in fp32. Ranks that call different operations fail at
/// once, each with one line that names both calls (on sockets only in a group's first 64).
///
/// Tensors on the group's GPU: NCCL, on a stream of the group's own, after what the caller's
/// current stream was given before; Work::wait() does not stop the host, only that stream. Sums are
/// taken in the tensor's type. A lost peer or a passed deadline shows at the next operation, wait()
/// or check().
class Group {
 public:
  /// A group of one rank.
  explicit Group(std::string name = "none");

  /// Connects the ranks. Collective; `store` must be the group's own (c10d::PrefixStore). Costs N-1
  /// connections and a thread; up to 2 MiB of memory per rank, shared, once used on one machine; on
  /// GPUs NCCL's own, too, from the first operation. Throws c10::DistError.
  Group(const GroupOptions& options, const GlooDevice& device,
        const c10::intrusive_ptr<c10d::Store>& store);

  const std::string& name() const;
  const std::vector<mesh::AxisName>& axes() const;  ///< see GroupOptions; likewise channel()
  const std::string& channel() const;
  int rank() const;
  int size() const;
  std::chrono::milliseconds timeout() const;
  bool shares_memory() const;  ///< all ranks are on one machine and use shared_memory.h
  /// Do operations run on the group's device, in order with its kernels? One that waits for other ranks holds a part of it.
  bool runs_on_device() const;

  /// tensor = op over ranks, in place, any shape.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) const;

  /// tensor = rank root's, any shape.
  Work broadcast(const at::Tensor& tensor, int root) const;

  /// output [N * n] = the ranks' inputs [n] in order. `input` may be this rank's part of `output`:
  /// nothing is copied then.
  Work all_gather(const at::Tensor& output, const at::Tensor& input) const;

  /// outputs[r] [n_r] = rank r's input; sizes may differ and be 0, but every rank knows them all.
  Work all_gather_uneven(std::span<const at::Tensor> outputs, const at::Tensor& input) const;

  /// output [n] = op over r of rank r's input[rank * n : (rank + 1) * n], input [N * n]. Uneven:
  /// pad the input. `output` may be this rank's part of `input`, whose other parts stay as they
  /// are.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::sum) const;

  /// output [n] = rank root's input[rank * n : (rank + 1) * n]. `input` [N * n] is looked at on the
  /// root alone and may be undefined elsewhere; `output` may be the root's part of it. A rank other
  /// than the root receives n elements, no more.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root) const;

  /// output[r * n : (r + 1) * n] = rank r's input[rank * n : (rank + 1) * n]; both [N * n], apart
  /// in memory.
  Work all_to_all_single(const at::Tensor& output, const at::Tensor& input) const;

  /// The same of rows of any number: rank s sends rows[s * N + d] rows to rank d, in the order of
  /// d; output has those that came, in the order of s. Every rank knows all of `rows`. Rows have the
  /// dimensions of output and input after the first. Counted as the mean of all ranks' inputs.
  Work all_to_all_uneven(const at::Tensor& output, const at::Tensor& input,
                         std::span<const int64_t> rows) const;

  /// Returns when all ranks have called it.
  void barrier() const;

  /// Every rank's `bytes` in order, of any lengths; for small things.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

  /// Throws c10::DistError if an operation on a GPU has failed, which can be after its wait(): what
  /// such operations left is not to be used. Certain once the host has waited for the GPU.
  void check() const;

  /// Ends the group: what is under way and whatever comes later fails, here and, as when this rank
  /// is lost, on its peers. For a rank that must leave while others wait for it.
  void abort() const;

  /// What this process's operations cost since the group was made.
  Counters counters() const;

  /// Memory for communication: this machine's shared slots as far as they were used (the same pages
  /// count on every rank that maps them), and the most staging that one operation needed.
  int64_t buffer_bytes() const;

 private:
  friend class Work;
  struct State;
  using Job = std::function<void(State&, const Deadline&)>;
  using NativeStart = std::function<NativeWork(const NativeCollectives&)>;
  Work start(const Call& call, Job job) const;
  Work start_on_device(const Call& call, const NativeStart& native) const;
  void check_tensor(const at::Tensor& tensor, Operation operation) const;

  std::shared_ptr<State> state_;
};

}  // namespace tessera::comm
