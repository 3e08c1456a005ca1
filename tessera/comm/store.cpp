#include "tessera/comm/store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
  sockaddr_in& v4() { return reinterpret_cast<sockaddr_in&>(storage); }
  sockaddr_in6& v6() { return reinterpret_cast<sockaddr_in6&>(storage); }
  bool is_v4() const { return storage.ss_family == AF_INET; }
};

Address resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    user_error("master address '{}': {}; set --master-addr or MASTER_ADDR", host,
               gai_strerror(error));
  }
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

bool is_loopback(Address& address) {
  if (address.is_v4()) return (ntohl(address.v4().sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&address.v6().sin6_addr);
}

int port_of(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  if (getsockname(fd, address.generic(), &address.length) != 0) {
    system_error("the listening socket handed to rank 0");
  }
  return ntohs(address.is_v4() ? address.v4().sin_port : address.v6().sin6_port);
}

void check(const Rendezvous& where) {
  if (where.world_size < 1) {
    user_error("world size: expected at least 1, got {}", where.world_size);
  }
  if (where.rank < 0 || where.rank >= where.world_size) {
    user_error("rank: expected 0 to {}, got {}; set --node-rank or RANK", where.world_size - 1,
               where.rank);
  }
  if (where.timeout <= std::chrono::milliseconds::zero()) {
    user_error("timeout: expected more than 0 s, got {} ms", where.timeout.count());
  }
  const bool port_needed = where.world_size > 1 && !(where.rank == 0 && where.listen_fd);
  if (port_needed && (where.master_port < 1 || where.master_port > 65535)) {
    user_error("master port: expected 1 to 65535, got {}; set --master-port or MASTER_PORT",
               where.master_port);
  }
}

}  // namespace

bool is_loopback(const std::string& host) {
  Address address = resolve(host);
  return is_loopback(address);
}

Listener listen_on(const std::string& host, int port) {
  Address address = resolve(host);
  if (!is_loopback(address)) {
    if (address.is_v4()) {
      address.v4().sin_addr.s_addr = htonl(INADDR_ANY);
    } else {
      address.v6().sin6_addr = in6addr_any;
    }
  }
  (address.is_v4() ? address.v4().sin_port : address.v6().sin6_port) =
      htons(static_cast<uint16_t>(port));
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) system_error("socket");
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  constexpr int kBacklog = 4096;  // every rank of a large run may connect at once
  if (bind(fd, address.generic(), address.length) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    user_error("port {} on {} is {}; set --master-port or MASTER_PORT", port, host,
               error == EADDRINUSE ? "in use" : std::strerror(error));
  }
  return {.fd = fd, .port = port_of(fd)};
}

c10::intrusive_ptr<c10d::Store> connect(const Rendezvous& where) {
  check(where);
  if (where.world_size == 1) {
    if (where.listen_fd) close(*where.listen_fd);
    return {};
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(where.master_port);
  options.numWorkers = where.world_size;
  options.waitWorkers = false;
  options.timeout = where.timeout;
  if (where.rank == 0) {
    // The store of LibTorch listens on every address unless it is given a bound socket.
    const Listener listener = where.listen_fd
                                  ? Listener{*where.listen_fd, port_of(*where.listen_fd)}
                                  : listen_on(where.master_addr, where.master_port);
    options.isServer = true;
    options.port = static_cast<uint16_t>(listener.port);
    options.masterListenFd = listener.fd;
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(where.master_addr, options);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    throw c10::DistError(
        fmt::format("rank {}: no store at {}:{} within {} s: {}", where.rank, where.master_addr,
                    options.port, where.timeout.count() / 1000.0,
                    reason.substr(0, reason.find('\n'))),
        nullptr);
  }
}

}  // namespace tessera::comm
