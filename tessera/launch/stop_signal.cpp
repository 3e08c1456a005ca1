#include "tessera/launch/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

std::atomic<int> noted{0};  // a handler can reach nothing else
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

void end(int) { ::_exit(kPreemptedExit); }

void on_stop_signals(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void end_on_stop_signals() { on_stop_signals(end); }

void note_stop_signals() { on_stop_signals(note); }

int stop_signal() { return noted; }

}  // namespace tessera::launch
