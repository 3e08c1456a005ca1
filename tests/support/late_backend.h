// A backend of collectives that is as late as NCCL may be, with CPU tensors: for use before completion.
#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tessera {

/// Collectives of `gloo`, one after the other on a thread, each on copies of its inputs. From the start to wait() outputs are bytes of 255 (NaN);
/// wait() fills them. An input that was changed in between ends the process with one line.
/// `fails`, asked at each start: once it says so, nothing is done any more, as when NCCL gives up beneath a stream: wait() returns, outputs are as
/// they were, and from then on getError() names a lost connection.
c10::intrusive_ptr<c10d::Backend> late_backend(const c10::intrusive_ptr<c10d::Backend>& gloo,
                                               std::function<bool()> fails = {});

}  // namespace tessera
