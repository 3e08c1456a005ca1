#include "fuzz/target.h"
#include "tessera/base/strict_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    // What was accepted can be written and read again.
    const auto parsed = tessera::parse_strict_json("file", bytes);
    if (tessera::parse_strict_json("again", parsed.dump()) != parsed) std::abort();
  });
}
