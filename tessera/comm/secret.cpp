#include "tessera/comm/secret.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr const char* kProofKey = "tessera/run_secret";
constexpr const char* kNoSecret = "none";

std::string proof_of(const Rendezvous& where) {
  if (where.secret.empty()) return kNoSecret;
  return hmac_sha256(where.secret, fmt::format("rank 0 of {}", where.world_size));
}

std::string there(const Rendezvous& where) {
  return fmt::format("{}:{}", where.master_addr, where.master_port);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> of_this_run(const c10::intrusive_ptr<c10d::Store>& store,
                                            const Rendezvous& where) {
  const auto own = proof_of(where);
  if (where.rank == 0) {
    store->set(kProofKey, own);
  } else {
    try {
      store->wait({kProofKey}, where.timeout);
    } catch (const c10::DistError&) {
      throw c10::DistError(
          fmt::format("rank {}: rank 0 did not come to the store at {} within {} s", where.rank,
                      there(where), where.timeout.count() / 1000.0),
          nullptr);
    }
    const auto found = store->get_to_str(kProofKey);
    if (found != own) {
      user_error(
          "rank {}: the run at {} {}; set TESSERA_RUN_SECRET_FILE (or TESSERA_RUN_SECRET) to the "
          "same on every machine, and another port for another run",
          where.rank, there(where),
          found == kNoSecret ? "has no secret, but this rank has one"
          : own == kNoSecret ? "has a secret, but this rank has none"
                             : "has another secret, or another number of ranks");
    }
  }
  if (where.secret.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(hmac_sha256(where.secret, "keys").substr(0, 32),
                                                store);
}

}  // namespace tessera::comm
