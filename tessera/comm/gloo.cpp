#include "tessera/comm/gloo.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tessera::comm {

GlooDevice make_gloo_device(bool loopback) {
  if (loopback) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  return interface != nullptr ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                              : c10d::ProcessGroupGloo::createDefaultDevice();
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
