// What the targets that read tokenizers do with one that was accepted.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer_parts.h"

namespace tessera::fuzz {

/// It encodes text that has a bit of everything, alike with and without offsets.
inline void use(const text::Tokenizer& tokenizer) {
  constexpr std::string_view kText =
      "The caf\xC3\xA9, nai\xCC\x88ve 123\n \xE4\xBD\xA0\xF0\x9F\x98\x80 <s>\xFF";
  const auto encoding = tokenizer.encode(kText);
  if (encoding.offsets.size() != encoding.ids.size()) std::abort();
  text::Encoder encoder(tokenizer);
  std::vector<uint32_t> ids;
  encoder.append(kText, ids);
  if (ids != encoding.ids) std::abort();
  tokenizer.decode(ids);
}

}  // namespace tessera::fuzz
