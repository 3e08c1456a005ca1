// The Gloo backend of c10d, and the one place that decides which network interface it uses.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace gloo::transport {
class Device;
}

namespace tessera::comm {

/// The socket and the I/O thread that all Gloo groups of a process share.
using GlooDevice = std::shared_ptr<gloo::transport::Device>;

/// `loopback`: bound to 127.0.0.1. Else the interface named by GLOO_SOCKET_IFNAME, or the one this
/// machine's host name resolves to.
GlooDevice make_gloo_device(bool loopback);

/// Connects the group's ranks to each other. Collective; every rank uses a store with the same
/// prefix.
c10::intrusive_ptr<c10d::Backend> make_gloo(const GlooDevice& device,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
