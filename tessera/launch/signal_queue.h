// The signals that a launcher handles, as a file to poll.
#pragma once

#include <signal.h>

#include <vector>

#include "tessera/base/file_descriptor.h"

namespace tessera::launch {

/// While it lives, SIGCHLD, SIGPIPE, SIGTERM, SIGUSR1 and (unless the process was started with them
/// ignored, as nohup does) SIGINT, SIGHUP and SIGQUIT are held back and queued here.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  std::vector<int> take();  ///< those that have come from outside; never waits
  const sigset_t& previous_mask() const { return previous_; }

 private:
  void restore();

  sigset_t previous_{};
  struct sigaction previous_child_action_ {};
  FileDescriptor fd_;
};

}  // namespace tessera::launch
