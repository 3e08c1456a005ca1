// From a text to its tokens, step by step.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/text/tokenizer_parts.h"

namespace tessera::text {

/// One text with offsets, without what stands around it.
Encoding encode_text(const Tokenizer::Parts& parts, std::string_view text, uint32_t type_id,
                     const EncodeOptions& options);

/// One or two texts with what stands around them.
Encoding put_together(const Tokenizer::Parts& parts, std::vector<Encoding> texts,
                      const EncodeOptions& options);

}  // namespace tessera::text
