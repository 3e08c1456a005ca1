// Safetensors whose weights bitsandbytes quantised: opened, and every number dequantised.
#include "tessera/checkpoint/formats/bitsandbytes.h"

#include <algorithm>
#include <vector>

#include "fuzz/memory_file.h"
#include "fuzz/target.h"

namespace {

void read_all(std::string_view input) {
  static const tessera::fuzz::MemoryFile file("model.safetensors");
  file.fill(input);
  const auto source = tessera::checkpoint::open_safetensors(file.path());
  for (const auto& [name, info] : source->tensors()) {
    // A weight that is dequantised is eight times what it is in the file.
    std::vector<std::byte> values(static_cast<size_t>(info.num_bytes()));
    source->read(name, 0, values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, read_all);
}
