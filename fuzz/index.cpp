#include "tessera/checkpoint/index.h"

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    // What was accepted is written as what it says.
    const auto index = tessera::checkpoint::parse_index("file", bytes);
    const auto text = tessera::checkpoint::format_index(index);
    if (tessera::checkpoint::parse_index("again", text) != index) std::abort();
  });
}
