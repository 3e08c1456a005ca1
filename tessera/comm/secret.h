// The secret of a run: by it ranks know that they are of one run, and others are kept out of its
// store.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/comm/store.h"

namespace tessera::comm {

/// Note [Run secret]. The store of LibTorch serves whoever reaches its port. Rank 0 puts a proof
/// there that it knows the run's secret (an HMAC, or the word that there is none), and every other
/// rank compares it before it writes anything: one that has another secret, or none, or came to the
/// port of another run, ends with one line and has disturbed nobody. Everything else stands under
/// names that begin with another HMAC of the secret: without it they cannot be guessed. This keeps
/// out mistakes and passers-by. It does not keep out who can read the network's packets, or list
/// the store's keys; and what ranks send each other is not encrypted (docs/launch.md).

/// The part of `store` that is the run's alone, once this rank and rank 0 know that they are of one
/// run. Throws UserError if they are not, c10::DistError if rank 0 does not come before the
/// deadline.
c10::intrusive_ptr<c10d::Store> of_this_run(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Rendezvous& where);

}  // namespace tessera::comm
