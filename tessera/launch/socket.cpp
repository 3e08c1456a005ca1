#include "tessera/launch/socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

[[noreturn]] void cannot_use(int port, int error) {
  user_error(
      "launch: master port {} cannot be used: {}; choose another one or, on one machine, none",
      port, std::strerror(error));
}

/// None: `error` says why not.
std::optional<BoundSocket> try_bind_exactly(const Address& address, int port, int& error) {
  BoundSocket result{FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  const int fd = result.fd.get();
  if (fd < 0) system_error("launch: cannot make a socket");
  const int yes = 1;  // a port whose last connections are still fading away is free
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!address.bind(fd, port)) {
    error = errno;
    return std::nullopt;
  }
  result.port = port_of(fd);
  return result;
}

/// Port 0 is one that stays free until a program listens there: outside of the range from which the kernel takes
/// those of connections and of whoever asks for any. If all that are tried are taken, one of that range.
std::optional<BoundSocket> try_bind(const Address& address, int port) {
  constexpr int kFirst = 10'000, kEnd = 65'536, kTries = 64;
  int low = 32'768, high = 60'999, error = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  std::random_device random;
  std::uniform_int_distribution<int> ports(kFirst, kEnd - 1);
  for (int i = 0; port == 0 && i < kTries; ++i) {
    const int candidate = ports(random);
    if (candidate >= low && candidate <= high) continue;
    if (auto bound = try_bind_exactly(address, candidate, error)) return bound;
  }
  auto bound = try_bind_exactly(address, port, error);
  if (!bound && error != EADDRINUSE) cannot_use(port, error);
  return bound;
}

}  // namespace

std::optional<BoundSocket> try_bind_port(int port, bool any_address) {
  const auto loopback = Address::of("127.0.0.1");
  return try_bind(any_address ? loopback.any() : loopback, port);
}

BoundSocket bind_port(int port, bool any_address) {
  auto bound = try_bind_port(port, any_address);
  if (!bound) cannot_use(port, EADDRINUSE);
  return std::move(*bound);
}

BoundSocket bind_port_of(const Address& address, int port) {
  auto bound = try_bind(address, port);
  if (!bound) cannot_use(port, EADDRINUSE);
  return std::move(*bound);
}

bool is_listening(int fd) {
  int accepts = 0;
  socklen_t length = sizeof accepts;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &length) == 0 && accepts != 0;
}

}  // namespace tessera::launch
