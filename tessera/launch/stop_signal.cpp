#include "tessera/launch/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

std::atomic<int> noted{0};  // a handler can reach nothing else
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  noted.compare_exchange_strong(none, signal);
}

constexpr std::string_view kEnded =
    "tessera: SIGUSR1 came before the first step: nothing to save yet (exit code 75)\n";

void end_silently(int) { ::_exit(kPreemptedExit); }
void end_with_a_line(int) {
  [[maybe_unused]] const auto written = ::write(2, kEnded.data(), kEnded.size());
  ::_exit(kPreemptedExit);
}

void on(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void end_on_stop_signal(bool speaks) { on(SIGUSR1, speaks ? end_with_a_line : end_silently); }

void note_stop_signals() {
  for (const int signal : {SIGTERM, SIGUSR1}) on(signal, note);
}

int stop_signal() { return noted; }

}  // namespace tessera::launch
