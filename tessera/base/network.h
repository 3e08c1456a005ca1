// Hosts, their addresses, and the port at which the ranks of a run meet.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <optional>
#include <string>

namespace tessera {

/// An IPv4 or IPv6 address without a port.
class Address {
 public:
  /// The first address that `host` (a name or a number) resolves to. Throws UserError.
  static Address of(const std::string& host);

  bool is_loopback() const;
  std::string text() const;  ///< "10.0.0.1", "fd00::1"

  /// Every address of this machine of the same family.
  Address any() const;

  /// The address of this machine from which packets to this one leave; none: there is no way.
  std::optional<Address> own_towards() const;

  /// Is it one of this machine's?
  bool is_own() const;

  /// Binds a socket to it; false with errno if that fails.
  bool bind(int fd, int port) const;
  int family() const { return storage_.ss_family; }

 private:
  sockaddr_storage with_port(int port) const;

  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// The addresses on which the store of a run listens. `host`: where its ranks look for it. Of a run
/// on one machine a loopback address stays one. Else the host's own address, and no other of this
/// machine; all of them only where the host's name leads to loopback here (as Debian has it of a
/// machine's own name) or to an address that is not of this machine (it is forwarded to it).
Address store_address(const std::string& host, bool one_machine);

int port_of(int fd);  ///< of a bound socket. Throws SystemError.

}  // namespace tessera
