// Ports of the rendezvous.
#pragma once

#include <optional>

#include "tessera/base/file_descriptor.h"
#include "tessera/base/network.h"

namespace tessera::launch {

struct BoundSocket {
  FileDescriptor fd;
  int port = 0;
};

/// A TCP socket bound to `port` of 127.0.0.1, or of every address when `any_address`; not listening
/// yet. 0: a free one, which stays free for a while if it is closed. Throws UserError if the port is
/// taken or not ours to use.
BoundSocket bind_port(int port, bool any_address = false);

/// The same on `address`.
BoundSocket bind_port_of(const Address& address, int port);

/// The same; nothing if the port is taken.
std::optional<BoundSocket> try_bind_port(int port, bool any_address = false);

/// Whether `fd` is an open TCP socket that listens.
bool is_listening(int fd);

}  // namespace tessera::launch
