#include "tessera/launch/signal_queue.h"

#include <sys/signalfd.h>

#include "tessera/base/error.h"

namespace tessera::launch {

SignalQueue::SignalQueue() {
  sigset_t held;
  ::sigemptyset(&held);
  for (const int signal : {SIGCHLD, SIGPIPE, SIGTERM, SIGUSR1}) ::sigaddset(&held, signal);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) ::sigaddset(&held, signal);
  }
  ::sigprocmask(SIG_BLOCK, &held, &previous_);
  struct sigaction reaped_by_us {};  // were it ignored, children would vanish without a status
  reaped_by_us.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &reaped_by_us, &previous_child_action_);
  fd_ = FileDescriptor(::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    restore();
    system_error("launch: signalfd");
  }
}

SignalQueue::~SignalQueue() {
  take();  // what has come late must not hit us once the mask is back
  restore();
}

void SignalQueue::restore() {
  ::sigaction(SIGCHLD, &previous_child_action_, nullptr);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD && signal != SIGPIPE) signals.push_back(signal);
  }
  return signals;
}

}  // namespace tessera::launch
