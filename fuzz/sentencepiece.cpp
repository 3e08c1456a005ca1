#include "fuzz/target.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessera::fuzz::run(data, size, [](std::string_view bytes) {
    const auto tokenizer = tessera::text::parse_sentencepiece("file", bytes);
    // What was accepted encodes text that has a bit of everything, alike with and without offsets.
    constexpr std::string_view kText =
        "The caf\xC3\xA9, nai\xCC\x88ve 123\n \xE4\xBD\xA0\xF0\x9F\x98\x80 <s>\xFF";
    const auto encoding = tokenizer.encode(kText);
    if (encoding.offsets.size() != encoding.ids.size()) std::abort();
    tessera::text::Encoder encoder(tokenizer);
    std::vector<uint32_t> ids;
    encoder.append(kText, ids);
    if (ids != encoding.ids) std::abort();
    tokenizer.decode(ids);
  });
}
