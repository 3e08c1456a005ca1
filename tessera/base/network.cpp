#include "tessera/base/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

sockaddr_in& v4(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in&>(storage); }
sockaddr_in6& v6(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in6&>(storage); }
const sockaddr_in& v4(const sockaddr_storage& s) { return reinterpret_cast<const sockaddr_in&>(s); }
const sockaddr_in6& v6(const sockaddr_storage& s) {
  return reinterpret_cast<const sockaddr_in6&>(s);
}
sockaddr* generic(sockaddr_storage& storage) { return reinterpret_cast<sockaddr*>(&storage); }

/// Closes what it opened.
struct Socket {
  int fd;
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Address Address::of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    user_error("master address '{}': {}; set --master-addr or MASTER_ADDR", host,
               ::gai_strerror(error));
  }
  Address address;
  address.length_ = found->ai_addrlen;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

bool Address::is_loopback() const {
  if (family() == AF_INET) return (ntohl(v4(storage_).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6(storage_).sin6_addr);
}

std::string Address::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* address = family() == AF_INET ? static_cast<const void*>(&v4(storage_).sin_addr)
                                            : &v6(storage_).sin6_addr;
  ::inet_ntop(family(), address, text.data(), text.size());
  return text.data();
}

Address Address::any() const {
  Address all = *this;
  if (family() == AF_INET) {
    v4(all.storage_).sin_addr.s_addr = htonl(INADDR_ANY);
  } else {
    v6(all.storage_).sin6_addr = in6addr_any;
  }
  return all;
}

sockaddr_storage Address::with_port(int port) const {
  auto storage = storage_;
  (family() == AF_INET ? v4(storage).sin_port : v6(storage).sin6_port) =
      htons(static_cast<uint16_t>(port));
  return storage;
}

std::optional<Address> Address::own_towards() const {
  // Connecting a datagram socket sends nothing: it only looks for the way.
  const Socket socket{::socket(family(), SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  auto there = with_port(9);
  Address own;
  own.length_ = sizeof(own.storage_);
  if (socket.fd < 0 || ::connect(socket.fd, generic(there), length_) != 0 ||
      ::getsockname(socket.fd, generic(own.storage_), &own.length_) != 0) {
    return std::nullopt;
  }
  return own;
}

bool Address::is_own() const {
  const Socket socket{::socket(family(), SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  return socket.fd >= 0 && bind(socket.fd, 0);
}

bool Address::bind(int fd, int port) const {
  auto storage = with_port(port);
  return ::bind(fd, generic(storage), length_) == 0;
}

Address store_address(const std::string& host, bool one_machine) {
  const auto address = Address::of(host);
  const bool usable = address.is_loopback() ? one_machine : address.is_own();
  return usable ? address : address.any();
}

int port_of(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd, generic(storage), &length) != 0) {
    system_error("the listening socket handed to rank 0");
  }
  return ntohs(storage.ss_family == AF_INET ? v4(storage).sin_port : v6(storage).sin6_port);
}

}  // namespace tessera
