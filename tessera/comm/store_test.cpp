#include "tessera/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace tessera::comm
