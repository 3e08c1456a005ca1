// A rank for launch_test: does what its argument says, through the same interface as a real worker.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/launch/progress.h"
#include "tessera/launch/rank_environment.h"

namespace {

/// Tells step 17 and, as rank 1, dies by SIGKILL; the others wait.
int die_at_step_17(const tessera::launch::RankEnvironment& self) {
  auto beacon = tessera::launch::StepBeacon::from_environment();
  if (!beacon.is_connected()) return 9;
  beacon.set(17);
  if (self.rank == 1) ::raise(SIGKILL);
  ::sleep(60);
  return 0;
}

/// 0 if rank 0 got a listening socket and nobody else did.
int check_listen_socket(const tessera::launch::RankEnvironment& self) {
  return self.listen_fd.has_value() == (self.rank == 0) ? 0 : 9;
}

/// Takes memory, a MiB at a time, until killed.
int eat_memory() {
  std::vector<std::vector<char>> eaten;
  for (int mebibytes = 0; mebibytes < 1024; ++mebibytes) eaten.emplace_back(1 << 20, 'x');
  return 9;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto self = tessera::launch::rank_environment();
  if (!self) return 8;
  if (what == "die_at_step_17") return die_at_step_17(*self);
  if (what == "check_listen_socket") return check_listen_socket(*self);
  if (what == "eat_memory") return eat_memory();
  return 7;
}
