// The rendezvous: how the ranks of a run find each other.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/comm/roll_call.h"

namespace tessera::comm {

/// Who this process is, and where rank 0 serves the store through which all groups are made.
struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;           ///< ignored by rank 0 if it has listen_fd
  std::optional<int> listen_fd;  ///< rank 0: a socket already bound; connect() takes it over
  bool served = false;           ///< the launcher serves the store there: rank 0 listens nowhere
  bool one_machine = true;       ///< all ranks are on this one
  std::string interface;         ///< of the network, for Gloo; empty: GLOO_SOCKET_IFNAME, else the
                                 ///< one by which the store is reached
  std::string secret;            ///< of the run; empty: none
  std::chrono::milliseconds timeout = std::chrono::seconds(600);  ///< deadline of every wait
};

/// A TCP socket bound to `host`:`port` (0: any free port) and listening, on the addresses that
/// store_address (base/network.h) says.
struct Listener {
  int fd = -1;
  int port = 0;
};

/// Throws UserError if the port is taken or the host unknown.
Listener listen_on(const std::string& host, int port, bool one_machine = true);

/// Do the ranks talk over loopback alone? Then all are on this machine and nothing listens
/// elsewhere.
bool on_loopback(const Rendezvous& where);

/// The store of the run: rank 0 serves it unless it is served, all others connect within `timeout`
/// and make sure that it is of their run (secret.h).
/// A world of one rank needs none and gets nullptr. SIGPIPE is ignored from then on, unless the
/// program handles it: a lost peer is an error, not the end. Throws UserError for impossible values
/// and an occupied port, c10::DistError when rank 0 is not found.
c10::intrusive_ptr<c10d::Store> connect(const Rendezvous& where);

/// A group that is about to be made: a name, and its ranks in the run.
struct Meeting {
  std::string name;
  std::vector<int> ranks;
};

/// Returns when all ranks of the meeting have called it. Throws c10::DistError at the deadline,
/// with the rank that did not come, and within about a second if this rank and another wait for
/// each other at different meetings: both get one line that names both.
void meet(const c10::intrusive_ptr<c10d::Store>& store, const Meeting& meeting,
          RollCall& roll_call);

}  // namespace tessera::comm
