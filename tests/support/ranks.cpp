#include "tests/support/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tests/support/rank_server.h"

extern char** environ;

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kRank = "TESSERA_TEST_RANK";
constexpr const char* kCall = "TESSERA_TEST_CALL";
constexpr const char* kPort = "TESSERA_TEST_PORT";
constexpr auto kGrace = std::chrono::seconds(5);

struct Child {
  int rank = 0;
  pid_t pid = -1;
  int output_fd = -1;
  bool running = true;
  int status = 0;
};

std::string test_name() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", info->test_suite_name(), info->name());
}

/// A test may call on_mesh several times: the same number in the parent and its children.
int next_call() {
  static std::string test;
  static int calls = 0;
  if (test != test_name()) {
    test = test_name();
    calls = 0;
  }
  return calls++;
}

std::vector<std::string> child_environment(int rank, int call, const comm::Listener& listener) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;  // sharding and reports belong to the parent
    if (!text.starts_with("GTEST_") && !text.starts_with("OMP_NUM_THREADS=")) {
      variables.push_back(text);
    }
  }
  variables.emplace_back("OMP_NUM_THREADS=1");
  variables.emplace_back(fmt::format("{}={}", kRank, rank));
  variables.emplace_back(fmt::format("{}={}", kCall, call));
  variables.emplace_back(fmt::format("{}={}", kPort, listener.port));
  return variables;
}

Child start_child(int rank, int call, const comm::Listener& listener) {
  const int output = memfd_create("output", MFD_CLOEXEC);
  if (output < 0) system_error("memfd_create");
  const pid_t pid =
      start_rank_process({.arguments = {"ranks", "--gtest_filter=" + test_name(), "--gtest_brief=1",
                                        "--gtest_color=no", "--gtest_output=", "--gtest_repeat=1",
                                        "--gtest_shuffle=0"},
                          .environment = child_environment(rank, call, listener),
                          .output_fd = output,
                          .listen_fd = rank == 0 ? listener.fd : -1});
  return {.rank = rank, .pid = pid, .output_fd = output};
}

bool passed(const Child& child, const RankOptions& options) {
  if (options.killed.contains(child.rank)) {
    return WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGKILL;
  }
  return WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
}

std::string end_of(const Child& child) {
  if (WIFSIGNALED(child.status)) return fmt::format("killed by signal {}", WTERMSIG(child.status));
  return fmt::format("exit code {}", WEXITSTATUS(child.status));
}

std::string output_of(const Child& child) {
  std::string text;
  lseek(child.output_fd, 0, SEEK_SET);
  char buffer[4096];
  for (ssize_t n; (n = read(child.output_fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

/// Returns when all have ended; kills what is left at the deadline.
void reap(std::vector<Child>& children, const RankOptions& options) {
  auto deadline = Clock::now() + options.deadline;
  bool any_running = true;
  while (any_running) {
    any_running = false;
    for (auto& child : children) {
      if (!child.running) continue;
      child.running = waitpid(child.pid, &child.status, WNOHANG) == 0;
      any_running |= child.running;
      if (!child.running && !passed(child, options)) {
        deadline = std::min(deadline, Clock::now() + kGrace);
      }
    }
    if (any_running && Clock::now() > deadline) {
      for (const auto& child : children) {
        if (child.running) kill(child.pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void run_parent(const RankOptions& options, int call) {
  const auto listener = comm::listen_on("127.0.0.1", 0);
  std::vector<Child> children;
  for (int rank = 0; rank < options.shape.num_ranks(); ++rank) {
    children.push_back(start_child(rank, call, listener));
  }
  close(listener.fd);
  reap(children, options);
  for (const auto& child : children) {
    EXPECT_TRUE(passed(child, options))
        << "rank " << child.rank << " of " << children.size() << ": " << end_of(child) << "\n"
        << output_of(child);
    close(child.output_fd);
  }
}

void run_rank(const RankOptions& options,
              const std::function<void(const mesh::DeviceMesh&)>& body) {
  comm::Rendezvous where{.rank = std::atoi(std::getenv(kRank)),
                         .world_size = options.shape.num_ranks(),
                         .master_port = std::atoi(std::getenv(kPort)),
                         .timeout = options.timeout};
  if (const char* fd = std::getenv(kListenFd)) where.listen_fd = std::atoi(fd);
  const mesh::DeviceMesh mesh(options.shape, where, options.transport);
  body(mesh);
  // Not earlier than all are through: rank 0 serves the store, and a failed rank must not look like
  // a lost one.
  if (options.killed.empty() && !::testing::Test::HasFailure()) mesh.world().barrier();
}

}  // namespace

void on_mesh(const RankOptions& options, const std::function<void(const mesh::DeviceMesh&)>& body) {
  const int call = next_call();
  const char* mine = std::getenv(kCall);
  if (mine != nullptr) {
    at::set_num_threads(1);  // OpenMP read the environment before the server had this rank's
    if (std::atoi(mine) == call) run_rank(options, body);
  } else if (options.shape.num_ranks() == 1) {
    body(mesh::DeviceMesh{});
  } else {
    run_parent(options, call);
  }
}

void on_ranks(int num_ranks, const std::function<void(const mesh::Axis&)>& body) {
  on_mesh({.shape = {.dp_replicate = num_ranks}},
          [&](const mesh::DeviceMesh& mesh) { body(mesh.axis("dp_replicate")); });
}

}  // namespace tessera
