#include "tessera/launch/stop_signal.h"

#include <signal.h>

#include <atomic>
#include <initializer_list>

namespace tessera::launch {
namespace {

std::atomic<int> noted{0};  // a handler can reach nothing else
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

}  // namespace

void note_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

int stop_signal() { return noted; }

}  // namespace tessera::launch
