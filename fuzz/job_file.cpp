#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "fuzz/target.h"
#include "tessera/config/run_config.h"

// The reader of job files wants a path: that of one file in memory, filled anew each time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("job.yaml", 0);
  static const auto path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  return tessera::fuzz::run(data, size, [](std::string_view) {
    const auto loaded = tessera::config::load_run_config(path, {});
    tessera::config::check(loaded.config, loaded.origins);
  });
}
