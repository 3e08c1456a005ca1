// What happens when a peer is lost: every survivor gets one DistError, in time.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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

TEST_P(FailureTest, APeerKilledInsideAnAllToAllIsNamed) {
  const int n = GetParam();
  const std::vector<int64_t> rows(static_cast<size_t>(n * n), 1 << 20);
  for (const bool shared_memory : {true, false}) {
    on_mesh({.shape = {.dp_shard = n, .ep = n},
             .transport = {.shared_memory = shared_memory},
             .killed = {n - 1}},
            [&](const mesh::DeviceMesh& mesh) {
              const auto& axis = mesh.axis("dp_shard");
              const auto input = at::ones({n << 20, 4}), output = at::empty_like(input);
              axis.barrier();
              auto work = axis.all_to_all_uneven(output, input, rows);
              if (axis.rank() == n - 1) raise(SIGKILL);
              EXPECT_THAT(
                  error_of([&] {
                    work.wait();
                    while (true) axis.all_to_all_uneven(output, input, rows).wait();
                  }),
                  ContainsRegex(fmt::format("^rank [01], axis dp_shard: all_to_all of {}.0 MiB "
                                            "failed after [0-9.]+ s: rank ",
                                            16 * n)));
            });
  }
}

TEST(Failure, AWriteToALostPeerDoesNotEndTheProcess) {
  on_mesh({.shape = {.dp_replicate = 2}}, [](const mesh::DeviceMesh& mesh) {
    mesh.axis("dp_replicate").barrier();
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    close(ends[0]);
    EXPECT_EQ(write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
    close(ends[1]);
  });
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

/// Runs `body` on all ranks but `stopped`, whose process is stopped meanwhile and killed
/// afterwards. `begin`: what every rank does just before.
void while_stopped(
    const mesh::DeviceMesh& mesh, int stopped, const std::function<void()>& body,
    const std::function<void()>& begin = [] {}) {
  const auto pids = mesh.all_of_training().all_gather_bytes(std::to_string(getpid()));
  std::vector<int> others;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (rank != stopped) others.push_back(rank);
  }
  Group survivors;
  if (mesh.rank() != stopped) survivors = mesh.world({.only = others});
  mesh.all_of_training().barrier();
  begin();
  if (mesh.rank() == stopped) raise(SIGSTOP);
  body();
  survivors.barrier();
  kill(std::stoi(pids[static_cast<size_t>(stopped)]), SIGKILL);
}

TEST_P(FailureTest, AStoppedPeerIsNamedByEveryRank) {
  const int n = GetParam();
  for (const auto& transport : kTransports) {
    for (const int stopped : {0, n - 1}) {  // rank 0 serves the store
      on_mesh({.shape = {.dp_replicate = n},
               .timeout = 2s,
               .transport = transport,
               .killed = {stopped}},
              [&](const mesh::DeviceMesh& mesh) {
                while_stopped(mesh, stopped, [&] {
                  const auto& axis = mesh.axis("dp_replicate");
                  // The ranks come one after the other, as in a real run.
                  std::this_thread::sleep_for(axis.rank() * 300ms);
                  auto tensor = at::ones({1 << 20});
                  EXPECT_THAT(error_of([&] { axis.all_reduce(tensor).wait(); }),
                              ContainsRegex(fmt::format(
                                  "^rank {}, axis dp_replicate: all_reduce of 4.0 MiB failed after "
                                  "[0-9.]+ s: rank {} did not come within 2 s$",
                                  axis.rank(), stopped)));
                });
              });
    }
  }
}

TEST_P(FailureTest, APeerStoppedInTheMiddleOfAnOperationIsNamedByEveryRank) {
  const int n = GetParam();
  for (const auto& transport : kTransports) {
    on_mesh(
        {.shape = {.dp_replicate = n}, .timeout = 2s, .transport = transport, .killed = {n - 1}},
        [&](const mesh::DeviceMesh& mesh) {
          const auto& axis = mesh.axis("dp_replicate");
          const auto tensor = at::ones({16 << 20});
          Work work;
          const auto message = std::make_shared<std::string>();
          while_stopped(
              mesh, n - 1,
              [&] {
                *message = error_of([&] {
                  work.wait();
                  axis.barrier();
                });
              },
              [&] { work = axis.all_reduce(tensor); });
          EXPECT_THAT(*message, HasSubstr(fmt::format(": rank {} did not come within 2 s", n - 1)));
        });
  }
}

TEST(Failure, ARankStoppedWhileItWaitsIsNamedOnceItIsWaitedFor) {
  for (const auto& transport : kTransports) {
    on_mesh({.shape = {.dp_replicate = 3}, .timeout = 4s, .transport = transport, .killed = {2}},
            [](const mesh::DeviceMesh& mesh) {
              const auto& axis = mesh.axis("dp_replicate");
              const auto tensor = at::ones({1000});
              Work work;
              while_stopped(
                  mesh, 2,
                  [&] {
                    std::this_thread::sleep_for(2s);
                    EXPECT_THAT(error_of([&] { axis.all_reduce(tensor).wait(); }),
                                HasSubstr(": rank 2 did not come within 4 s"));
                  },
                  [&] {  // the others come after it has said that it waits for them
                    if (axis.rank() != 2) return;
                    work = axis.all_reduce(tensor);
                    std::this_thread::sleep_for(1700ms);
                  });
            });
  }
}

TEST(Failure, AStoppedRankIsNamedByBothNeighboursOfAPipeline) {
  for (const bool shared_memory : {true, false}) {
    on_mesh({.shape = {.pp = 3},
             .timeout = 2s,
             .transport = {.shared_memory = shared_memory},
             .killed = {1}},
            [](const mesh::DeviceMesh& mesh) {
              const int rank = mesh.rank();
              Group pair;  // with rank 1, which is in two
              if (rank < 2) pair = mesh.axis("pp", {.only = {0, 1}});
              if (rank > 0) pair = mesh.axis("pp", {.only = {1, 2}});
              while_stopped(mesh, 1, [&] {
                auto tensor = at::ones({100});
                const auto message =
                    error_of([&] { pair.broadcast(tensor, rank == 0 ? 1 : 0).wait(); });
                EXPECT_THAT(message, HasSubstr(fmt::format("rank {}, axis pp[", rank)));
                EXPECT_THAT(message, HasSubstr(": rank 1 did not come within 2 s"));
              });
            });
  }
}

TEST(Failure, WhoWaitsForAWaitingRankNamesTheOneThatIsStopped) {
  // With rank 3 stopped, rank 2 waits for it on dp_shard, and rank 0 for rank 2 on dp_replicate.
  for (const bool shared_memory : {true, false}) {
    for (const int stopped : {3, 0}) {
      on_mesh({.shape = {.dp_replicate = 2, .dp_shard = 2},
               .timeout = 4s,
               .transport = {.shared_memory = shared_memory},
               .killed = {stopped}},
              [&](const mesh::DeviceMesh& mesh) {
                const auto& replicate = mesh.axis("dp_replicate");
                const auto& shard = mesh.axis("dp_shard");
                while_stopped(mesh, stopped, [&] {
                  auto tensor = at::ones({1000});
                  const auto message = error_of([&] {
                    if (mesh.rank() / 2 == stopped / 2) shard.all_reduce(tensor).wait();
                    replicate.all_reduce(tensor).wait();
                  });
                  EXPECT_THAT(message,
                              HasSubstr(fmt::format(": rank {} did not come within 4 s", stopped)));
                });
              });
    }
  }
}

TEST(Failure, ARankThatMeetsNobodyNamesWhoDidNotCome) {
  for (const int stopped : {0, 2}) {
    on_mesh({.shape = {.dp_replicate = 3}, .timeout = 2s, .killed = {stopped}},
            [&](const mesh::DeviceMesh& mesh) {
              while_stopped(mesh, stopped, [&] {
                const auto message =
                    error_of([&] { mesh.axis("dp_replicate", {.channel = "new"}).barrier(); });
                EXPECT_THAT(message,
                            HasSubstr(fmt::format("rank {}, axis dp_replicate/new: rank {} did not "
                                                  "come within 2 s",
                                                  mesh.rank(), stopped)));
              });
            });
  }
}

TEST(Failure, ALateRankIsToldSo) {
  on_mesh({.shape = {.dp_replicate = 2}, .timeout = 1s}, [](const mesh::DeviceMesh& mesh) {
    const auto& axis = mesh.axis("dp_replicate", {.channel = "work"});
    mesh.world().barrier();
    auto tensor = at::ones({10});
    if (axis.rank() == 1) std::this_thread::sleep_for(2s);
    const auto message = error_of([&] { axis.all_reduce(tensor).wait(); });
    EXPECT_THAT(message,
                HasSubstr(axis.rank() == 0 ? "rank 1 did not come within 1 s"
                                           : "rank 0 had waited for this rank until the deadline"));
  });
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

TEST(Failure, DifferentCallsAreNamedOnEveryRank) {
  struct Case {
    std::function<void(const Group&)> first, others;  // of rank 0, of all others
    std::string name_of_first, name_of_others;
  };
  const auto floats = [](int64_t count) { return at::ones({count}); };
  const std::vector<Case> cases = {
      {[&](const Group& axis) { axis.all_reduce(floats(100)).wait(); },
       [&](const Group& axis) { axis.all_reduce(floats(50)).wait(); },
       "all_reduce of 400 B \\(Float, sum\\)", "all_reduce of 200 B \\(Float, sum\\)"},
      {[&](const Group& axis) { axis.all_reduce(floats(0)).wait(); },
       [&](const Group& axis) { axis.all_reduce(floats(2'000'000)).wait(); },
       "all_reduce of 0 B \\(Float, sum\\)", "all_reduce of 8000000 B \\(Float, sum\\)"},
      {[&](const Group& axis) { axis.all_reduce(floats(2)).wait(); },
       [&](const Group& axis) { axis.all_reduce(floats(2), ReduceOp::max).wait(); },
       "all_reduce of 8 B \\(Float, sum\\)", "all_reduce of 8 B \\(Float, max\\)"},
      {[&](const Group& axis) { axis.all_gather(floats(axis.size() * 10), floats(10)).wait(); },
       [&](const Group& axis) { axis.reduce_scatter(floats(10), floats(axis.size() * 10)).wait(); },
       "all_gather of 120 B \\(Float\\)", "reduce_scatter of 120 B \\(Float, sum\\)"},
      {[&](const Group& axis) { axis.broadcast(floats(10), 0).wait(); },
       [&](const Group& axis) { axis.broadcast(floats(10), 1).wait(); },
       "broadcast of 40 B \\(Float, root 0\\)", "broadcast of 40 B \\(Float, root 1\\)"},
      {[&](const Group& axis) { axis.barrier(); },
       [&](const Group& axis) { axis.scatter(floats(2), floats(2 * axis.size()), 0).wait(); },
       "barrier", "scatter of 24 B \\(Float, root 0\\)"},
      {[&](const Group& axis) {
         axis.all_to_all_uneven(floats(6), floats(6), std::vector<int64_t>(9, 2)).wait();
       },
       [&](const Group& axis) {
         axis.all_to_all_uneven(floats(3), floats(3), std::vector<int64_t>(9, 1)).wait();
       },
       "all_to_all of 24 B \\(Float\\)", "all_to_all of 12 B \\(Float\\)"}};
  const auto all_cases = [&](const mesh::DeviceMesh& mesh) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto& [first, others, name_of_first, name_of_others] = cases[i];
      const auto& axis = mesh.axis("dp_shard", {.channel = fmt::format("case {}", i)});
      const auto& call = axis.rank() == 0 ? first : others;
      axis.all_reduce(at::ones({1000})).wait();
      std::string message;
      const double seconds = seconds_of([&] { message = error_of([&] { call(axis); }); });
      EXPECT_LT(seconds, 5);
      const auto expected =
          axis.rank() == 0
              ? fmt::format("rank 0 called {}, rank [12] {};", name_of_first, name_of_others)
              : fmt::format("rank {} called {}, rank 0 {};", axis.rank(), name_of_others,
                            name_of_first);
      EXPECT_THAT(message, ContainsRegex(expected));
      EXPECT_THAT(message, Not(HasSubstr("\n")));
    }
  };
  on_mesh({.shape = {.dp_shard = 3}}, all_cases);
  on_mesh({.shape = {.dp_shard = 3}, .transport = {.shared_memory = false}}, all_cases);
}

}  // namespace
}  // namespace tessera::comm
