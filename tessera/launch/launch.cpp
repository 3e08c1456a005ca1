#include "tessera/launch/launch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/launch/failure.h"
#include "tessera/launch/rank_environment.h"
#include "tessera/launch/socket.h"
#include "tessera/launch/supervisor.h"

extern char** environ;

namespace tessera::launch {
namespace {

using EnvironmentMap = std::map<std::string, std::string>;

void check(const LaunchOptions& options) {
  if (options.command.empty()) user_error("launch: no program given; name one after the options");
  if (options.num_processes < 1) {
    user_error("launch: number of processes: expected at least 1, got {}", options.num_processes);
  }
  if (options.num_nodes < 1)
    user_error("launch: number of nodes: expected at least 1, got {}", options.num_nodes);
  if (options.node_rank < 0 || options.node_rank >= options.num_nodes) {
    user_error("launch: node rank: expected 0 to {}, got {}", options.num_nodes - 1,
               options.node_rank);
  }
  if (options.max_restarts < 0)
    user_error("launch: restarts: expected at least 0, got {}", options.max_restarts);
  if (options.master_port < 0 || options.master_port > 65535) {
    user_error("launch: master port: expected 1 to 65535, got {}", options.master_port);
  }
  if (options.master_addr.empty())
    user_error("launch: master address is empty; give the host of node 0");
  if (options.num_nodes > 1 && options.master_port == 0) {
    user_error("launch: {} nodes need a common --master-addr and --master-port; port is not set",
               options.num_nodes);
  }
}

EnvironmentMap own_environment() {
  EnvironmentMap result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address.starts_with("127.");
}

/// The rendezvous of one attempt.
struct Rendezvous {
  int port = 0;
  FileDescriptor listening;  ///< only if it is passed on
};

BoundSocket bind_master_port(const LaunchOptions& options, bool any_address) {
  if (!options.other_port_if_busy) return bind_port(options.master_port, any_address);
  if (auto bound = try_bind_port(options.master_port, any_address)) return std::move(*bound);
  BoundSocket other = bind_port(0, any_address);
  write_all(2, fmt::format("tessera launch: port {} is in use: taking {}, which is free\n",
                           options.master_port, other.port));
  return other;
}

Rendezvous make_rendezvous(const LaunchOptions& options) {
  if (options.node_rank > 0) return {.port = options.master_port};
  const bool loopback = options.num_nodes == 1 && is_loopback(options.master_addr);
  BoundSocket bound = options.num_nodes > 1
                          ? bind_port_of(store_address(options.master_addr, /*one_machine=*/false),
                                         options.master_port)
                          : bind_master_port(options, !loopback);
  const bool passed = options.pass_listen_socket && (loopback || options.num_nodes > 1);
  if (!passed) return {.port = bound.port};  // free again for the program
  if (::listen(bound.fd.get(), SOMAXCONN) != 0) {
    user_error("launch: master port {} cannot be used: {}; choose another one or none", bound.port,
               std::strerror(errno));
  }
  return {.port = bound.port, .listening = std::move(bound.fd)};
}

/// An empty file that is ours until we end: another launch into the same folder is refused, and
/// what this one has written stays. A named pipe would wait for somebody who reads.
FileDescriptor open_log(const std::string& path) {
  FileDescriptor log(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666));
  struct stat status {};
  const bool known = log.is_open() ? ::fstat(log.get(), &status) == 0
                                   : errno == ENXIO && ::stat(path.c_str(), &status) == 0;
  if (known && !S_ISREG(status.st_mode))
    user_error("launch: '{}' is no regular file; remove it or choose another log folder", path);
  if (!log.is_open()) user_error("launch: '{}' cannot be written: {}", path, std::strerror(errno));
  if (::flock(log.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    user_error(
        "launch: '{}': another launch writes there; wait for its end, or choose another log "
        "folder",
        path);
  }
  if (::ftruncate(log.get(), 0) != 0)
    user_error("launch: '{}' cannot be emptied: {}", path, std::strerror(errno));
  return log;
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options)
      : options_(options),
        program_(find_program(options.command.front())),
        variables_(own_environment()),
        run_id_(fmt::format("tessera-{}-{}", ::getpid(), random_hex(8))) {
    for (const auto& [name, value] : options.environment) variables_[name] = value;
    for (const char* of_outer_launch : {"TESSERA_LISTEN_FD", "TESSERA_PROGRESS_FD"})
      variables_.erase(of_outer_launch);
    if (options.num_processes > 1 && variables_.emplace("OMP_NUM_THREADS", "1").second &&
        options.output == OutputMode::prefixed) {
      write_all(
          2,
          fmt::format(
              "tessera launch: OMP_NUM_THREADS is not set: using 1 for each of the {} processes\n",
              options.num_processes));
    }
    give_secret();
    open_logs();
  }

  int run();

 private:
  void give_secret();
  void open_logs();
  std::vector<RankStart> starts(Rendezvous rendezvous, int attempt,
                                const ProgressBoard& progress) const;
  int first_rank() const { return options_.node_rank * options_.num_processes; }

  const LaunchOptions& options_;
  std::string program_;
  EnvironmentMap variables_;
  std::string run_id_;
  std::vector<FileDescriptor> logs_;  // by local rank; empty without log_dir
};

/// On one machine every run has a secret of its own, which only its ranks' environment holds. Over
/// several it is the user's to give.
void Launch::give_secret() {
  if (variables_.contains(kRunSecretVariable) || variables_.contains(kRunSecretFileVariable))
    return;
  if (options_.num_nodes == 1) {
    variables_[kRunSecretVariable] = random_hex(32);
  } else if (options_.node_rank == 0) {
    write_all(2,
              fmt::format("tessera launch: no run secret: whoever reaches port {} can disturb the "
                          "run; set {} to a file with the same secret on every machine\n",
                          options_.master_port, kRunSecretFileVariable));
  }
}

void Launch::open_logs() {
  if (options_.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  if (error)
    user_error("launch: log folder '{}' cannot be made: {}", options_.log_dir, error.message());
  for (int local_rank = 0; local_rank < options_.num_processes; ++local_rank) {
    const std::string path =
        fmt::format("{}/rank_{}.log", options_.log_dir, first_rank() + local_rank);
    logs_.emplace_back(open_log(path));
  }
}

std::vector<RankStart> Launch::starts(Rendezvous rendezvous, int attempt,
                                      const ProgressBoard& progress) const {
  const int world_size = options_.num_nodes * options_.num_processes;
  std::vector<RankStart> result;
  for (int local_rank = 0; local_rank < options_.num_processes; ++local_rank) {
    const int rank = first_rank() + local_rank;
    RankStart start{.rank = rank, .inherited_fds = {progress.fd()}};
    EnvironmentMap variables = variables_;
    const auto set = [&](const char* name, const auto& value) {
      variables[name] = fmt::format("{}", value);
    };
    set("RANK", rank);
    set("LOCAL_RANK", local_rank);
    set("WORLD_SIZE", world_size);
    set("LOCAL_WORLD_SIZE", options_.num_processes);
    set("GROUP_RANK", options_.node_rank);
    set("GROUP_WORLD_SIZE", options_.num_nodes);
    set("ROLE_RANK", rank);
    set("ROLE_WORLD_SIZE", world_size);
    set("ROLE_NAME", options_.role);
    set("MASTER_ADDR", options_.master_addr);
    set("MASTER_PORT", rendezvous.port);
    set("TORCHELASTIC_RUN_ID", run_id_);
    set("TORCHELASTIC_RESTART_COUNT", attempt);
    set("TORCHELASTIC_MAX_RESTARTS", options_.max_restarts);
    set("TORCHELASTIC_USE_AGENT_STORE", "False");
    set("TESSERA_PROGRESS_FD", progress.fd());
    if (rank == 0 && rendezvous.listening.is_open()) {
      set("TESSERA_LISTEN_FD", rendezvous.listening.get());
      start.listening = std::move(rendezvous.listening);
    }
    if (!logs_.empty()) start.log_fd = logs_[static_cast<size_t>(local_rank)].get();
    for (const auto& [name, value] : variables) start.environment.push_back(name + "=" + value);
    result.push_back(std::move(start));
  }
  return result;
}

/// Orphans of our descendants come to us while it lives.
class Subreaper {
 public:
  Subreaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

int Launch::run() {
  const Subreaper subreaper;
  std::set<pid_t> foreign_children;
  for (const auto& process : list_processes()) {
    if (process.parent == ::getpid()) foreign_children.insert(process.pid);
  }
  LaunchState state{.signals = {},
                    .foreign_children = std::move(foreign_children),
                    .keeper = {"TORCHELASTIC_RUN_ID=" + run_id_, options_.num_processes},
                    .progress = ProgressBoard(options_.num_processes)};
  state.foreign_children.insert(state.keeper.pid());
  for (int attempt = 0;; ++attempt) {
    const AttemptEnd end = run_attempt(
        options_, program_, starts(make_rendezvous(options_), attempt, state.progress), state);
    const RankEnd* cause = first_cause(end);
    const bool preempted = std::ranges::any_of(end.ranks, &RankEnd::preempted);
    // Who ends early by a signal to it alone leaves peers that find it lost.
    const auto first = std::ranges::min_element(end.ranks, {}, &RankEnd::time);
    if (preempted && (cause == nullptr || first->preempted())) return kPreemptedExit;
    if (end.signal != 0 && (cause == nullptr || cause->stopped_by_us)) {
      report_signal(end, options_.output);
      return 128 + end.signal;
    }
    if (cause == nullptr) return 0;
    report_failure(*cause, end, options_.output);
    if (attempt == options_.max_restarts || end.signal != 0) return exit_code(*cause);
    write_all(
        2, fmt::format("tessera launch: restart {} of {}\n", attempt + 1, options_.max_restarts));
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  return Launch(options).run();
}

}  // namespace tessera::launch
