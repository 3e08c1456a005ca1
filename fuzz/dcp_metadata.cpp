#include "tessera/checkpoint/formats/dcp_metadata.h"

#include "fuzz/target.h"

using namespace tessera::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const auto metadata = parse_dcp_metadata("file", bytes);
    for (const auto& [name, tensor] : metadata.tensors) {
      // The middle of every tensor is in its chunks, element by element.
      const int64_t count = tensor.info.num_elements();
      const int64_t begin = count / 2, end = begin + (count < 64 ? count - begin : 32);
      int64_t found = 0;
      for (const auto& chunk : tensor.chunks) {
        for_each_run(tensor.info.shape, chunk, begin, end,
                     [&](const ChunkRun& run) { found += run.count; });
      }
      if (found != end - begin) std::abort();
    }
  });
}
