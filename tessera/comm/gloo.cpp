#include "tessera/comm/gloo.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/error.h"
#include "tessera/base/network.h"

namespace tessera::comm {
namespace {

using c10d::ProcessGroupGloo;

/// Where a rank of another machine says at which address it has reached the store.
constexpr const char* kReachedKey = "store_reached_at";

/// This machine's address as other machines reach it. Where the store's host leads to loopback here
/// (a machine's own name does on Debian), that is the address by which others have reached it.
std::string own_address(const Rendezvous& where, const c10::intrusive_ptr<c10d::Store>& store) {
  const auto there = Address::of(where.master_addr);
  const auto own = there.own_towards();
  if (own && !own->is_loopback()) {
    store->set(kReachedKey, there.text());
    return own->text();
  }
  try {
    store->wait({kReachedKey}, where.timeout);
  } catch (const c10::DistError&) {
    throw c10::DistError(
        fmt::format("rank {}: no rank of another machine came to the store at {}:{} within {} s",
                    where.rank, where.master_addr, where.master_port,
                    where.timeout.count() / 1000.0),
        nullptr);
  }
  auto reached = store->get_to_str(kReachedKey);
  if (!Address::of(reached).is_own()) {
    user_error(
        "rank {}: '{}' is a loopback address here and {} elsewhere, which is no address of this "
        "machine; set interface or GLOO_SOCKET_IFNAME to its network interface",
        where.rank, where.master_addr, reached);
  }
  return reached;
}

}  // namespace

GlooDevice make_gloo_device(const Rendezvous& where, const c10::intrusive_ptr<c10d::Store>& store) {
  if (on_loopback(where)) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  if (!where.interface.empty()) return ProcessGroupGloo::createDeviceForInterface(where.interface);
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return ProcessGroupGloo::createDeviceForInterface(interface);
  return ProcessGroupGloo::createDeviceForHostname(own_address(where, store));
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const GlooDevice& device,
                                            const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = {device};
  options->threads = 1;  // a group runs one operation at a time, see queue.h
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, std::move(options));
}

}  // namespace tessera::comm
