#include "tessera/checkpoint/formats/torch_archive.h"

#include "fuzz/target.h"

using namespace tessera::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const TorchArchive archive("file", bytes);
    const auto* dict = dict_of(archive.root());
    const auto* param = dict == nullptr ? nullptr : dict->find("param");
    const auto tensor = archive.tensor(param == nullptr ? archive.root() : *param);
    // Never more than the file holds, so a tensor may be read as a whole.
    std::vector<std::byte> values(static_cast<size_t>(tensor.info.num_bytes()));
    if (values.size() > bytes.size()) std::abort();
    tensor.read(0, values);
  });
}
