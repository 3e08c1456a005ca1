// The Gloo backend of c10d, and the one place that decides which network interface it uses.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/store.h"

namespace gloo::transport {
class Device;
}

namespace tessera::comm {

/// The socket and the I/O thread that all Gloo groups of a process share.
using GlooDevice = std::shared_ptr<gloo::transport::Device>;

/// A run on one machine gets a device bound to 127.0.0.1, others that of the interface that `where` or
/// GLOO_SOCKET_IFNAME names, or the one by which this machine reaches `where.master_addr`; what its
/// own host name resolves to (127.0.1.1, mostly) does not matter. Throws UserError, and c10::DistError
/// at the deadline if only another machine could tell and none came.
GlooDevice make_gloo_device(const Rendezvous& where, const c10::intrusive_ptr<c10d::Store>& store);

/// Connects the group's ranks to each other. Collective; every rank uses a store with the same
/// prefix.
c10::intrusive_ptr<c10d::Backend> make_gloo(const GlooDevice& device,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
