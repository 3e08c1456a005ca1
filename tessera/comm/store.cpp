#include "tessera/comm/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/error.h"
#include "tessera/base/network.h"
#include "tessera/comm/queue.h"
#include "tessera/comm/secret.h"
#include "tessera/comm/thread.h"

namespace tessera::comm {
namespace {

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

using Milliseconds = std::chrono::milliseconds;
constexpr auto kMeetingPeriod = std::chrono::seconds(1);
constexpr const char* kHere = "here";

/// Where rank says that it has come to the meeting, or why it never will.
std::string place_of(const Meeting& meeting, int rank) {
  return fmt::format("meet/{}/{}/{}", meeting.name, meeting.ranks.front(), rank);
}

/// Where a rank says at which meeting it waits.
std::string whereabouts_of(int rank) { return fmt::format("meet/at/{}", rank); }

std::string to_text(const Meeting& meeting) {
  return fmt::format("{}\n{}", meeting.name, fmt::join(meeting.ranks, " "));
}

Meeting meeting_from(const std::string& text) {
  Meeting meeting;
  std::istringstream words(text);
  std::getline(words, meeting.name);
  for (int rank = 0; words >> rank;) meeting.ranks.push_back(rank);
  return meeting;
}

/// Waits until all keys are there; false if they are not at the end of `period`.
bool wait_for(c10d::Store& store, const std::vector<std::string>& keys, Milliseconds period) {
  try {
    store.wait(keys, period);
    return true;
  } catch (const c10::DistStoreError&) {
    return store.check(keys);
  }
}

void check_answer(const std::string& answer) {
  if (answer != kHere) throw c10::DistError(answer, nullptr);
}

/// If `peer` waits for this rank elsewhere: tells it that this rank will not come, and throws.
void refuse_deadlock(c10d::Store& store, const Meeting& meeting, int rank, int peer) {
  if (!store.check({whereabouts_of(peer)})) return;
  const auto other = meeting_from(store.get_to_str(whereabouts_of(peer)));
  if (std::ranges::find(other.ranks, rank) == other.ranks.end()) return;
  if (store.check({place_of(meeting, peer)})) return;  // it has answered meanwhile, and gone on
  if (to_text(other) == to_text(meeting) || store.check({place_of(other, rank)})) return;
  const auto reason = fmt::format(
      "rank {} makes axis {} while rank {} makes axis {}; all ranks must first use "
      "their axes in the same order",
      rank, meeting.name, peer, other.name);
  store.set(place_of(other, rank), reason);
  throw c10::DistError(reason, nullptr);
}

/// Gloo and the store write to sockets whose other end may just have died. That is an error for
/// them to report, not a reason to end the process. (Python ignores the signal always.)
void ignore_broken_pipes() {
  struct sigaction action = {};
  sigaction(SIGPIPE, nullptr, &action);
  if (action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// LibTorch's deadline does not cover a port where somebody listens but never answers.
StorePtr make_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  // The store's own error, which says more, goes first.
  const auto store = within<StorePtr>(
      options.timeout + std::chrono::seconds(1),
      [host, options]() -> StorePtr { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  TORCH_CHECK_WITH(DistError, store.has_value(),
                   "who listens there does not answer; set another port");
  return *store;
}

}  // namespace

bool on_loopback(const Rendezvous& where) {
  return where.one_machine && Address::of(where.master_addr).is_loopback();
}

Listener listen_on(const std::string& host, int port, bool one_machine) {
  const auto address = store_address(host, one_machine);
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) system_error("socket");
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  constexpr int kBacklog = 4096;  // every rank of a large run may connect at once
  if (!address.bind(fd, port) || listen(fd, kBacklog) != 0) {
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
  ignore_broken_pipes();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(where.master_port);
  options.numWorkers = where.world_size;
  options.waitWorkers = false;
  options.timeout = where.timeout;
  if (where.rank == 0 && !where.served) {
    // The store of LibTorch listens on every address unless it is given a bound socket.
    const Listener listener =
        where.listen_fd ? Listener{*where.listen_fd, port_of(*where.listen_fd)}
                        : listen_on(where.master_addr, where.master_port, where.one_machine);
    options.isServer = true;
    options.port = static_cast<uint16_t>(listener.port);
    options.masterListenFd = listener.fd;
  }
  StorePtr store;
  try {
    store = make_store(where.master_addr, options);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    throw c10::DistError(
        fmt::format("rank {}: no store at {}:{} within {} s: {}", where.rank, where.master_addr,
                    options.port, where.timeout.count() / 1000.0,
                    reason.substr(0, reason.find('\n'))),
        nullptr);
  }
  return of_this_run(store, where);
}

namespace {

/// Waits for all ranks of a meeting. May wait for the store's server without end.
void await_all(c10d::Store& store, const Meeting& meeting, const RollCallOptions& self) {
  const Deadline deadline(self.timeout);
  store.set(whereabouts_of(self.rank), to_text(meeting));
  if (!store.check({place_of(meeting, self.rank)})) store.set(place_of(meeting, self.rank), kHere);
  std::vector<std::string> places;
  for (const int peer : meeting.ranks) places.push_back(place_of(meeting, peer));
  while (!wait_for(store, places, std::min<Milliseconds>(kMeetingPeriod, deadline.left()))) {
    std::vector<int> missing;
    for (size_t i = 0; i < places.size(); ++i) {
      if (store.check({places[i]})) {
        check_answer(store.get_to_str(places[i]));
      } else {
        missing.push_back(meeting.ranks[i]);
        refuse_deadlock(store, meeting, self.rank, meeting.ranks[i]);
      }
    }
    if (deadline.passed() && !missing.empty()) {
      throw MissingPeers(MissingPeers::Why::late, missing, did_not_come(missing));
    }
  }
  for (const auto& answer : store.multiGet(places)) check_answer({answer.begin(), answer.end()});
}

}  // namespace

void meet(const c10::intrusive_ptr<c10d::Store>& store, const Meeting& meeting,
          RollCall& roll_call) {
  const auto self = roll_call.options();
  auto others = meeting.ranks;
  std::erase(others, self.rank);
  try {
    roll_call.watch(
        [others] { return others; },
        [&] {
          const auto met = within<bool>(self.timeout + 2 * kMeetingPeriod, [store, meeting, self] {
            await_all(*store, meeting, self);
            return true;
          });
          if (!met) {
            throw MissingPeers(MissingPeers::Why::late, others, "the store does not answer");
          }
        });
  } catch (const std::runtime_error& error) {
    throw c10::DistError(fmt::format("rank {}, axis {}: {}", self.rank, meeting.name, error.what()),
                         nullptr);
  }
}

}  // namespace tessera::comm
