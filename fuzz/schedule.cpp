#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "fuzz/target.h"
#include "tessera/schedule/check.h"
#include "tessera/schedule/csv.h"

// A table that was read and proved is written and read back to the same. The reader wants a path:
// that of one file in memory, filled anew each time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("table.csv", 0);
  static const auto path = "/proc/self/fd/" + std::to_string(file);
  const auto fill = [](const void* bytes, size_t count) {
    if (ftruncate(file, 0) != 0 || pwrite(file, bytes, count, 0) != static_cast<ssize_t>(count))
      std::abort();
  };
  fill(data, size);
  return tessera::fuzz::run(data, size, [&](std::string_view) {
    const auto table = tessera::schedule::read_csv(path);
    tessera::schedule::check(table);
    const auto text = tessera::schedule::csv_text(table);
    fill(text.data(), text.size());
    if (tessera::schedule::read_csv(path).ranks != table.ranks) std::abort();
  });
}
