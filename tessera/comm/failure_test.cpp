// What happens when a peer is lost: every survivor gets one DistError, in time.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tessera/comm/group.h"
#include "tests/support/ranks.h"

namespace tessera::comm {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::DistError& error) {
    return error.what();
  }
  return "no error";
}

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

const Transport kTransports[] = {{},
                                 {.shared_memory = false, .all_reduce = Algorithm::native},
                                 {.shared_memory = false, .all_reduce = Algorithm::exchange}};

class FailureTest : public RankTest {};

TEST_P(FailureTest, AKilledPeerRaisesLongBeforeTheDeadline) {
  const int n = GetParam();
  for (const auto& transport : kTransports) {
    on_mesh({.shape = {.dp_replicate = n}, .transport = transport, .killed = {n - 1}},
            [&](const mesh::DeviceMesh& mesh) {
              const auto& axis = mesh.axis("dp_replicate");
              axis.barrier();
              if (axis.rank() == n - 1) raise(SIGKILL);
              std::string message;
              auto tensor = at::ones({1 << 20});
              const double seconds = seconds_of([&] {
                message = error_of([&] {
                  while (true) axis.all_reduce(tensor).wait();
                });
              });
              EXPECT_LT(seconds, 5);
              EXPECT_THAT(message, ContainsRegex("^rank [01], axis dp_replicate: all_reduce of 4.0 "
                                                 "MiB failed after [0-9.]+ s: "));
              EXPECT_THAT(message, Not(HasSubstr("\n")));
              // From then on the group refuses, at once and for the same reason.
              EXPECT_LT(seconds_of([&] { message = error_of([&] { axis.barrier(); }); }), 1);
              EXPECT_THAT(message, HasSubstr("barrier of 0 B failed"));
            });
  }
}

TEST(Failure, APeerThatNeverCallsIsMissedAtTheDeadline) {
  for (const auto& transport : kTransports) {
    on_mesh({.shape = {.dp_replicate = 2}, .timeout = 2s, .transport = transport, .killed = {0}},
            [&](const mesh::DeviceMesh& mesh) {
              const auto& axis = mesh.axis("dp_replicate");
              axis.barrier();
              if (axis.rank() == 0) {
                std::this_thread::sleep_for(4s);
                raise(SIGKILL);
              }
              auto tensor = at::ones({1000});
              std::string message;
              const double seconds =
                  seconds_of([&] { message = error_of([&] { axis.all_reduce(tensor).wait(); }); });
              EXPECT_GT(seconds, 1.5);
              EXPECT_LT(seconds, 3.5);
              EXPECT_THAT(message, HasSubstr("axis dp_replicate: all_reduce of 3.9 KiB failed"));
            });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, FailureTest, ::testing::Values(2, 3));

TEST(Failure, SharedMemoryNamesTheDeadRank) {
  on_mesh({.shape = {.dp_replicate = 3}, .killed = {1}}, [](const mesh::DeviceMesh& mesh) {
    const auto& axis = mesh.axis("dp_replicate");
    axis.barrier();
    if (axis.rank() == 1) raise(SIGKILL);
    auto tensor = at::ones({100});
    EXPECT_THAT(error_of([&] { axis.all_reduce(tensor).wait(); }),
                ContainsRegex("rank 1: the process has ended|rank [02]: gave up"));
  });
}

}  // namespace
}  // namespace tessera::comm
