#include "fuzz/target.h"
#include "fuzz/tokenizer_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    tessera::fuzz::use(tessera::text::parse_sentencepiece("file", bytes));
  });
}
