// The parts of tokenizer.json. Each reads the value of one key; UserError names what is not known.
#pragma once

#include "tessera/text/json_node.h"
#include "tessera/text/tokenizer_parts.h"

namespace tessera::text {

Normalizer read_normalizer(const JsonNode& node);
PreTokenizer read_pre_tokenizer(const JsonNode& node);
Model read_model(const JsonNode& node);
PostProcessor read_post_processor(const JsonNode& node);
std::optional<Decoder> read_decoder(const JsonNode& node);
std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Vocabulary& vocabulary);

/// A `Replace` of normalizers and decoders.
ReplaceText read_replace(const JsonNode& node);

/// The merge of two tokens of a vocabulary; UserError if one, or what they become, is not in it.
void add_merge(Bpe& model, const std::string& where, std::string_view left, std::string_view right,
               uint32_t rank);

/// Lets a model of GPT-2's letters take bytes, if its words come from ByteLevel, which then leaves
/// them as bytes: nothing is rewritten.
void take_bytes(Model& model, PreTokenizer& pre_tokenizer);

}  // namespace tessera::text
