// How tokens become text again: the `decoder` of tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/text/normalizer.h"
#include "tessera/text/pre_tokenizer.h"

namespace tessera::text {

struct ByteLevelDecoding {};
struct WordPieceDecoding {
  std::string prefix = "##";
  bool cleanup = true;
};
struct MetaspaceDecoding {
  std::string mark = "\xE2\x96\x81";
  Prepend prepend = Prepend::always;
};
struct ByteFallbackDecoding {};
struct FuseDecoding {};
struct StripDecoding {
  std::string content;  ///< one character
  size_t start = 0, stop = 0;
};
struct BpeDecoding {
  std::string suffix = "</w>";
};
struct CtcDecoding {
  std::string pad = "<pad>", word_delimiter = "|";
  bool cleanup = true;
};

using DecoderStep =
    std::variant<ByteLevelDecoding, WordPieceDecoding, MetaspaceDecoding, ByteFallbackDecoding,
                 FuseDecoding, StripDecoding, ReplaceText, BpeDecoding, CtcDecoding>;
using Decoder = std::vector<DecoderStep>;  ///< one after the other

void apply(const DecoderStep& step, std::vector<std::string>& tokens);

/// How a SentencePiece model has its pieces back as text.
struct SentencePieceDecoding {
  bool consumes_prefix = true;   ///< of the blanks before the text: one
  bool consumes_blanks = false;  ///< all
  std::string unknown = " \xE2\x81\x87 ";
};

}  // namespace tessera::text
