#include "tessera/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tessera/base/network.h"
#include "tessera/base/testing.h"
#include "tests/support/ranks.h"

namespace tessera::comm {
namespace {

using tessera::testing::message_of;
using ::testing::HasSubstr;

TEST(Store, AnOccupiedPortIsOneLine) {
  const auto taken = listen_on("127.0.0.1", 0);
  EXPECT_EQ(
      message_of([&] { connect({.world_size = 2, .master_port = taken.port}); }),
      fmt::format("port {} on 127.0.0.1 is in use; set --master-port or MASTER_PORT", taken.port));
  close(taken.fd);
}

TEST(Store, ImpossibleValuesAreNamed) {
  EXPECT_THAT(message_of([] { connect({.rank = 2, .world_size = 2}); }),
              HasSubstr("rank: expected 0 to 1, got 2"));
  EXPECT_THAT(message_of([] { connect({.world_size = 0}); }), HasSubstr("world size: expected"));
  EXPECT_THAT(message_of([] { connect({.rank = 1, .world_size = 2}); }),
              HasSubstr("master port: expected 1 to 65535, got 0"));
  EXPECT_THAT(message_of([] {
                connect({.world_size = 2, .master_addr = "no.such.host.invalid", .master_port = 1});
              }),
              HasSubstr("master address 'no.such.host.invalid'"));
}

TEST(Store, NoRankZeroIsAnErrorAtTheDeadline) {
  const auto free = listen_on("127.0.0.1", 0);
  close(free.fd);
  try {
    connect({.rank = 1,
             .world_size = 2,
             .master_port = free.port,
             .timeout = std::chrono::milliseconds(500)});
    FAIL() << "no error";
  } catch (const c10::DistError& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, HasSubstr("rank 1: no store at 127.0.0.1:"));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Store, OneRankListensNowhere) { EXPECT_FALSE(connect({}).defined()); }

/// Inodes of the sockets that this process holds.
std::set<std::string> sockets_of_this_process() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat info {};
    if (stat(entry.path().c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
      inodes.insert(std::to_string(info.st_ino));
    }
  }
  return inodes;
}

/// Local addresses, as the kernel prints them, of this process's listening sockets.
std::vector<std::string> listening(const char* table) {
  const auto mine = sockets_of_this_process();
  std::vector<std::string> addresses;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeouts, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeouts >> inode;
    if (state == "0A" && mine.contains(inode)) addresses.push_back(local);
  }
  return addresses;
}

TEST(Store, OneMachineRunsListenOnLoopbackOnly) {
  on_ranks(2, [](const Group& axis) {
    axis.barrier();
    const auto v4 = listening("/proc/self/net/tcp");
    EXPECT_GE(v4.size(), 1u + (axis.rank() == 0 ? 1 : 0));  // Gloo's; rank 0: the store's, too
    for (const auto& address : v4) EXPECT_EQ(address.substr(0, 8), "0100007F");
    EXPECT_TRUE(listening("/proc/self/net/tcp6").empty());
  });
}

/// What two ranks in two threads get to hear, which have these secrets.
std::vector<std::string> meeting_with(const std::string& first, const std::string& second) {
  const auto free = listen_on("127.0.0.1", 0);
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(2);
  const auto at = [&](int rank, const std::string& secret) {
    Rendezvous where{.rank = rank,
                     .world_size = 2,
                     .master_port = free.port,
                     .secret = secret,
                     .timeout = std::chrono::seconds(20)};
    if (rank == 0) where.listen_fd = free.fd;
    return message_of([&] { stores[static_cast<size_t>(rank)] = connect(where); });
  };
  auto other = std::async(std::launch::async, at, 1, second);
  std::vector<std::string> heard{at(0, first)};
  heard.push_back(other.get());
  if (stores[0] && stores[1]) {
    stores[0]->set("key", "value");
    EXPECT_EQ(stores[1]->get_to_str("key"), "value");
  }
  return heard;
}

TEST(RunSecret, RanksOfOneRunMeet) {
  for (const char* secret : {"", "a secret of the run"}) {
    EXPECT_THAT(meeting_with(secret, secret), ::testing::Each("no error")) << secret;
  }
}

TEST(RunSecret, AnotherSecretOrNoneIsOneLineAndChangesNothing) {
  EXPECT_THAT(meeting_with("one", "another")[1],
              HasSubstr("has another secret, or another number of ranks; set "
                        "TESSERA_RUN_SECRET_FILE (or TESSERA_RUN_SECRET) to the same on every"));
  EXPECT_THAT(meeting_with("one", "")[1], HasSubstr("has a secret, but this rank has none"));
  EXPECT_THAT(meeting_with("", "one")[1], HasSubstr("has no secret, but this rank has one"));
}

TEST(RunSecret, AStrangerDoesNotFindTheRunsKeys) {
  const auto free = listen_on("127.0.0.1", 0);
  const auto store = connect({.rank = 0,
                              .world_size = 2,
                              .listen_fd = free.fd,
                              .secret = "a secret of the run",
                              .timeout = std::chrono::seconds(20)});
  store->set("key", "value");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free.port);
  options.waitWorkers = false;
  const c10::intrusive_ptr<c10d::Store> stranger =
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  EXPECT_FALSE(stranger->check({"key"}));
  EXPECT_TRUE(store->check({"key"}));
  stranger->set("key", "other");
  EXPECT_EQ(store->get_to_str("key"), "value");
}

TEST(RunSecret, NoRankZeroIsAnErrorAtTheDeadline) {
  const auto free = listen_on("127.0.0.1", 0);
  c10d::TCPStoreOptions options;  // of a program that serves the store for the ranks
  options.isServer = true;
  options.masterListenFd = free.fd;
  options.port = static_cast<uint16_t>(free.port);
  options.waitWorkers = false;
  const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  try {
    connect({.rank = 1,
             .world_size = 2,
             .master_port = free.port,
             .timeout = std::chrono::milliseconds(500)});
    FAIL() << "no error";
  } catch (const c10::DistError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1: rank 0 did not come to the store at 127.0.0.1:"));
  }
}

TEST(StoreAddress, IsTheHostsOwnAndNoOther) {
  EXPECT_EQ(store_address("127.0.0.1", /*one_machine=*/true).text(), "127.0.0.1");
  EXPECT_EQ(store_address("127.0.1.1", /*one_machine=*/false).text(), "0.0.0.0");
  EXPECT_EQ(store_address("192.0.2.1", /*one_machine=*/false).text(), "0.0.0.0");  // forwarded
  const auto own = Address::of("192.0.2.1").own_towards();
  if (!own) GTEST_SKIP() << "no network here";
  EXPECT_EQ(store_address(own->text(), /*one_machine=*/false).text(), own->text());
}

}  // namespace
}  // namespace tessera::comm
