#include "tessera/launch/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

[[noreturn]] void cannot_use(int port, int error) {
  user_error(
      "launch: master port {} cannot be used: {}; choose another one or, on one machine, none",
      port, std::strerror(error));
}

}  // namespace

std::optional<BoundSocket> try_bind_port(int port, bool any_address) {
  BoundSocket result{FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  const int fd = result.fd.get();
  if (fd < 0) system_error("launch: cannot make a socket");
  const int yes = 1;  // a port whose last connections are still fading away is free
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(any_address ? INADDR_ANY : INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    cannot_use(port, errno);
  }
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    system_error("launch: getsockname");
  result.port = ntohs(address.sin_port);
  return result;
}

BoundSocket bind_port(int port, bool any_address) {
  auto bound = try_bind_port(port, any_address);
  if (!bound) cannot_use(port, EADDRINUSE);
  return std::move(*bound);
}

bool is_listening(int fd) {
  int accepts = 0;
  socklen_t length = sizeof accepts;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &length) == 0 && accepts != 0;
}

}  // namespace tessera::launch
