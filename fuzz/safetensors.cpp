#include "fuzz/target.h"
#include "tessera/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    tessera::checkpoint::parse_safetensors_header("file", bytes);
  });
}
