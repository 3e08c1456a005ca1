#include "tessera/launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/launch/failure.h"

namespace tessera::launch {
namespace {

using namespace std::chrono_literals;

// After the first failure others may be about to fail for the same or a better reason: let them.
constexpr auto kMoment = 300ms;
constexpr auto kUnkillable =
    5s;  // a process that SIGKILL does not end hangs in the kernel: we do not
// `timeout` sends its signal to a process, and then to the group that it is in.
constexpr auto kSameRequest = 300ms;
constexpr size_t kNumLastLines = 20;

/// Did the program end by an interrupt: by its signal, or with the exit code that stands for it?
bool ended_by_interrupt(int wait_status) {
  return (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGINT) ||
         (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 128 + SIGINT);
}

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, LaunchState& state) : options_(options), state_(state) {}

  void start(const std::string& program, const std::vector<RankStart>& ranks);
  AttemptEnd run();

 private:
  struct Running {
    int rank = 0;
    pid_t pid = 0;
    bool ended = false;
    bool halted = false;
  };

  void start_rank(const std::string& program, const RankStart& rank, int null_fd);
  RankStreamOptions shown(const RankStart& rank, bool is_stderr) const;
  void pump(Clock::time_point until);
  void reap();
  void record_end(size_t local_rank, int wait_status);
  void advance();
  void handle(int signal);
  void stop(int signal, std::chrono::milliseconds grace);
  void end_halted();
  void kill_all() { send(SIGKILL), killed_at_ = Clock::now(); }
  void send(int signal) const;
  void end_stragglers();
  bool all_ended() const { return end_.ranks.size() == running_.size(); }
  Clock::time_point next_deadline() const;

  const LaunchOptions& options_;
  LaunchState& state_;
  OutOfMemoryWatch out_of_memory_;
  std::vector<Running> running_;  // by local rank
  std::vector<RankStream> out_, err_;
  AttemptEnd end_;
  bool interrupted_ = false;  // by the user
  std::optional<Clock::time_point> asked_at_, failed_at_, kill_at_, killed_at_;
};

void Supervisor::start(const std::string& program, const std::vector<RankStart>& ranks) {
  state_.progress.clear();
  const FileDescriptor null_fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.is_open()) system_error("launch: cannot open /dev/null");
  try {
    for (const auto& rank : ranks) start_rank(program, rank, null_fd.get());
  } catch (...) {
    kill_all();
    end_stragglers();
    throw;
  }
}

RankStreamOptions Supervisor::shown(const RankStart& rank, bool is_stderr) const {
  using Show = RankStreamOptions::Show;
  RankStreamOptions result{.shown_on = is_stderr ? 2 : 1,
                           .prefix = fmt::format("[{}]: ", rank.rank),
                           .log_fd = rank.log_fd,
                           .num_last_lines = is_stderr ? kNumLastLines : 0};
  if (options_.output == OutputMode::plain)
    result.show = rank.rank == 0 ? Show::unchanged : Show::nothing;
  return result;
}

void Supervisor::start_rank(const std::string& program, const RankStart& rank, int null_fd) {
  Pipe out = make_pipe(), err = make_pipe();
  const bool own_stdout = options_.output == OutputMode::plain && rank.rank == 0 && rank.log_fd < 0;
  // A process group in the background must not read from the terminal: it would be stopped.
  const bool own_stdin = running_.empty() && ::isatty(0) == 0;
  auto inherited_fds = rank.inherited_fds;
  if (rank.listening.is_open()) inherited_fds.push_back(rank.listening.get());
  const pid_t pid = spawn({.program = program,
                           .arguments = options_.command,
                           .environment = rank.environment,
                           .stdin_fd = own_stdin ? 0 : null_fd,
                           .stdout_fd = own_stdout ? 1 : out.write.get(),
                           .stderr_fd = err.write.get(),
                           .inherited_fds = std::move(inherited_fds),
                           .signal_mask = state_.signals.previous_mask()});
  state_.keeper.set_group(static_cast<int>(running_.size()), pid);
  running_.push_back({rank.rank, pid});
  out_.emplace_back(std::move(out.read), shown(rank, false));
  err_.emplace_back(std::move(err.read), shown(rank, true));
}

AttemptEnd Supervisor::run() {
  while (!all_ended()) {
    pump(next_deadline());
    for (const int signal : state_.signals.take()) handle(signal);
    reap();
    advance();
    if (killed_at_ && Clock::now() > *killed_at_ + kUnkillable) {
      throw SystemError("launch: a rank does not end though killed; see its state in /proc");
    }
  }
  end_stragglers();
  for (auto& stream : out_) stream.drain();
  for (auto& stream : err_) stream.drain();
  for (auto& rank : end_.ranks) {
    const auto position =
        std::find_if(running_.begin(), running_.end(),
                     [&](const Running& running) { return running.pid == rank.pid; });
    rank.last_lines = err_[static_cast<size_t>(position - running_.begin())].last_lines();
  }
  note_missed(end_);
  return std::move(end_);
}

/// Waits for output, a signal (SIGCHLD among them) or the deadline, and takes what has been
/// printed.
void Supervisor::pump(Clock::time_point until) {
  std::vector<pollfd> files{{state_.signals.fd(), POLLIN, 0}};
  std::vector<RankStream*> streams{nullptr};
  for (auto* list : {&out_, &err_}) {
    for (auto& stream : *list) {
      if (stream.fd() < 0) continue;
      files.push_back({stream.fd(), POLLIN, 0});
      streams.push_back(&stream);
    }
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  ::poll(files.data(), files.size(), static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60000)));
  for (size_t i = 1; i < files.size(); ++i) {
    if (files[i].revents != 0) streams[i]->read_some();
  }
}

void Supervisor::reap() {
  int wait_status = 0;
  for (pid_t pid;
       (pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0;) {  // orphans of ranks come to us, too
    const auto rank = std::find_if(running_.begin(), running_.end(), [&](const Running& running) {
      return !running.ended && running.pid == pid;
    });
    if (rank != running_.end())
      record_end(static_cast<size_t>(rank - running_.begin()), wait_status);
  }
}

void Supervisor::record_end(size_t local_rank, int wait_status) {
  Running& rank = running_[local_rank];
  rank.ended = true;
  state_.keeper.set_group(static_cast<int>(local_rank), 0);
  if (interrupted_ && options_.ranks_take_interrupts && ended_by_interrupt(wait_status)) {
    end_.signal = SIGINT;
  }
  const bool sigkill = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  end_.ranks.push_back({.rank = rank.rank,
                        .pid = rank.pid,
                        .wait_status = wait_status,
                        .time = Clock::now(),
                        .stopped_by_us = kill_at_.has_value() || end_.signal != 0,
                        .was_halted = rank.halted,
                        .out_of_memory = sigkill && !kill_at_ && out_of_memory_.killed(rank.pid),
                        .step = state_.progress.step(static_cast<int>(local_rank)),
                        .doing = state_.progress.doing(static_cast<int>(local_rank))});
  if (end_.ranks.back().failed() && !failed_at_) failed_at_ = Clock::now();
}

void Supervisor::advance() {
  const auto now = Clock::now();
  if (failed_at_ && !kill_at_ && now >= *failed_at_ + kMoment) {
    end_halted();
    stop(SIGTERM, options_.grace);
  }
  if (kill_at_ && !killed_at_ && now >= *kill_at_) kill_all();
}

void Supervisor::handle(int signal) {
  interrupted_ = interrupted_ || signal == SIGINT;
  // Passed on: what it means is up to the ranks.
  if (signal == SIGUSR1 || (signal == SIGINT && options_.ranks_take_interrupts)) {
    return send(signal);
  }
  const bool is_same = signal == end_.signal && asked_at_;
  if (is_same && Clock::now() < *asked_at_ + kSameRequest) return;
  if (end_.signal != 0) return kill_all();  // asked twice: at once
  asked_at_ = Clock::now();
  end_.signal = signal;
  stop(signal, options_.signal_grace);
}

void Supervisor::stop(int signal, std::chrono::milliseconds grace) {
  send(signal);
  send(SIGCONT);  // a stopped process would not see the first
  kill_at_ = Clock::now() + grace;
}

/// Kills ranks that are stopped, or of which a process is. Not by SIGTERM and SIGCONT: with what
/// the others left, a rank that goes on finds an error of its own, which hides that it was stopped.
void Supervisor::end_halted() {
  for (const auto& process : list_processes()) {
    if (process.state != 'T' && process.state != 't') continue;
    for (auto& rank : running_) {
      if (!rank.ended && rank.pid == process.group) rank.halted = true;
    }
  }
  for (const auto& rank : running_) {
    if (rank.halted) ::kill(-rank.pid, SIGKILL);
  }
}

/// Sends a signal to every rank's process group, and to each descendant that left it.
void Supervisor::send(int signal) const {
  std::set<pid_t> groups;
  for (const auto& rank : running_) {
    if (rank.ended) continue;  // its number may be another's by now
    groups.insert(rank.pid);
    ::kill(-rank.pid, signal);
  }
  for (const auto& process : descendants(state_.foreign_children)) {
    if (!groups.contains(process.group)) ::kill(process.pid, signal);
  }
}

/// All ranks have ended: what they started and left behind must end as well.
void Supervisor::end_stragglers() {
  const auto start = Clock::now();
  bool asked = kill_at_.has_value();  // then the group was told already, and its grace counts
  const auto patience = killed_at_ ? 0ms : options_.grace;
  while (!descendants(state_.foreign_children).empty()) {
    if (!std::exchange(asked, true)) send(SIGTERM);
    if (Clock::now() >= start + patience) send(SIGKILL);
    if (Clock::now() >= start + patience + kUnkillable) break;
    pump(Clock::now() + 10ms);
    for (const int signal : state_.signals.take()) end_.signal = signal;
    reap();
  }
  reap();
}

Clock::time_point Supervisor::next_deadline() const {
  if (killed_at_) return *killed_at_ + kUnkillable;
  if (kill_at_) return *kill_at_;
  if (failed_at_) return *failed_at_ + kMoment;
  return Clock::now() + 60s;
}

}  // namespace

AttemptEnd run_attempt(const LaunchOptions& options, const std::string& program,
                       std::vector<RankStart> ranks, LaunchState& state) {
  Supervisor supervisor(options, state);
  supervisor.start(program, ranks);
  ranks.clear();
  return supervisor.run();
}

}  // namespace tessera::launch
