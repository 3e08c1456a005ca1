#include "tessera/comm/thread.h"

#include <pthread.h>
#include <signal.h>

namespace tessera::comm {

std::thread start_thread(const std::string& name, std::function<void()> body) {
  // The new thread inherits a mask that blocks all signals.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

}  // namespace tessera::comm
