// Post-processors and decoders of tokenizer.json, and the file as a whole.
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/text/load_steps.h"

namespace tessera::text {
namespace {

TemplatePart special_part(uint32_t id, uint32_t type_id) {
  return {TemplatePart::Kind::special, {id}, type_id};
}

TemplatePart text_part(bool first, uint32_t type_id) {
  return {first ? TemplatePart::Kind::first : TemplatePart::Kind::second, {}, type_id};
}

Template read_template(const JsonNode& node, const JsonNode& special_tokens) {
  Template parts;
  node.expect_array();
  for (size_t i = 0; i < node.size(); ++i) {
    const auto entry = node[i];
    entry.expect_keys({"SpecialToken", "Sequence"});
    const auto special = entry["SpecialToken"], text = entry["Sequence"];
    if (special.is_null() == text.is_null()) entry.refuse("either SpecialToken or Sequence");
    const auto& part = special.is_null() ? text : special;
    part.expect_keys({"id", "type_id"});
    const auto type_id = part["type_id"].count();
    if (special.is_null()) {
      parts.push_back(text_part(part["id"].one_of({"A", "B"}) == 0, type_id));
      continue;
    }
    const auto ids = special_tokens[part["id"].text()]["ids"];
    ids.expect_array();
    parts.push_back({TemplatePart::Kind::special, {}, type_id});
    for (size_t k = 0; k < ids.size(); ++k) parts.back().ids.push_back(ids[k].count());
  }
  return parts;
}

/// ["[SEP]", 3]
uint32_t read_special(const JsonNode& node) {
  node.expect_array();
  if (node.size() != 2) node.refuse("a token and its id");
  node[0].text();
  return node[1].count();
}

void set_templates(const JsonNode& step, PostProcessor& processor, Template single, Template pair) {
  if (processor.single)
    user_error("{}: a second step that puts tokens around a text is not known here", step.where());
  processor.single = std::move(single);
  processor.pair = std::move(pair);
}

void read_post_processor_step(const JsonNode& step, PostProcessor& processor) {
  const auto type = step.type();
  if (type == "ByteLevel") {
    step.expect_keys({"add_prefix_space", "trim_offsets", "use_regex"});
    if (step["trim_offsets"].truth()) processor.trims.push_back({step["add_prefix_space"].truth()});
  } else if (type == "TemplateProcessing") {
    // Command-R's has keys of ByteLevel beside its own, which nobody reads.
    step.expect_keys(
        {"single", "pair", "special_tokens", "add_prefix_space", "trim_offsets", "use_regex"});
    const auto special = step["special_tokens"];
    set_templates(step, processor, read_template(step["single"], special),
                  read_template(step["pair"], special));
    for (const auto& part : *processor.single) {
      if (part.kind == TemplatePart::Kind::second) step["single"].refuse("no second text");
    }
  } else if (type == "BertProcessing") {
    step.expect_keys({"sep", "cls"});
    const auto sep = read_special(step["sep"]), cls = read_special(step["cls"]);
    set_templates(step, processor, {special_part(cls, 0), text_part(true, 0), special_part(sep, 0)},
                  {special_part(cls, 0), text_part(true, 0), special_part(sep, 0),
                   text_part(false, 1), special_part(sep, 1)});
  } else if (type == "RobertaProcessing") {
    step.expect_keys({"sep", "cls", "trim_offsets", "add_prefix_space"});
    const auto sep = read_special(step["sep"]), cls = read_special(step["cls"]);
    if (step["trim_offsets"].truth_or(true))
      processor.trims.push_back({step["add_prefix_space"].truth_or(true)});
    set_templates(step, processor, {special_part(cls, 0), text_part(true, 0), special_part(sep, 0)},
                  {special_part(cls, 0), text_part(true, 0), special_part(sep, 0),
                   special_part(sep, 0), text_part(false, 0), special_part(sep, 0)});
  } else {
    step["type"].refuse(
        "a post-processor that is known here (TemplateProcessing, ByteLevel, BertProcessing, "
        "RobertaProcessing, Sequence)");
  }
}

MetaspaceDecoding read_metaspace(const JsonNode& step) {
  step.expect_keys({"replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  MetaspaceDecoding decoding;
  decoding.mark = step["replacement"].text();
  constexpr std::array kSchemes{Prepend::always, Prepend::first, Prepend::never};
  const auto scheme = step["prepend_scheme"];
  if (!scheme.is_null()) decoding.prepend = kSchemes[scheme.one_of({"always", "first", "never"})];
  if (!step["add_prefix_space"].truth_or(true)) decoding.prepend = Prepend::never;
  return decoding;
}

void read_decoder_step(const JsonNode& step, Decoder& decoder) {
  const auto type = step.type();
  if (type == "ByteLevel") {
    step.expect_keys({"add_prefix_space", "trim_offsets", "use_regex"});
    decoder.emplace_back(ByteLevelDecoding{});
  } else if (type == "WordPiece") {
    step.expect_keys({"prefix", "cleanup"});
    decoder.emplace_back(WordPieceDecoding{step["prefix"].text(), step["cleanup"].truth()});
  } else if (type == "Metaspace") {
    decoder.emplace_back(read_metaspace(step));
  } else if (type == "ByteFallback") {
    step.expect_keys({});
    decoder.emplace_back(ByteFallbackDecoding{});
  } else if (type == "Fuse") {
    step.expect_keys({});
    decoder.emplace_back(FuseDecoding{});
  } else if (type == "Strip") {
    step.expect_keys({"content", "start", "stop"});
    if (step["content"].text().empty()) step["content"].refuse("one character");
    decoder.emplace_back(
        StripDecoding{step["content"].text(), step["start"].count(), step["stop"].count()});
  } else if (type == "Replace") {
    decoder.emplace_back(read_replace(step));
  } else if (type == "BPEDecoder") {
    step.expect_keys({"suffix"});
    decoder.emplace_back(BpeDecoding{step["suffix"].text_or("</w>")});
  } else if (type == "CTC") {
    step.expect_keys({"pad_token", "word_delimiter_token", "cleanup"});
    decoder.emplace_back(CtcDecoding{step["pad_token"].text(), step["word_delimiter_token"].text(),
                                     step["cleanup"].truth()});
  } else {
    step["type"].refuse(
        "a decoder that is known here (ByteLevel, WordPiece, Metaspace, ByteFallback, Fuse, Strip, "
        "Replace, BPEDecoder, CTC, Sequence)");
  }
}

}  // namespace

PostProcessor read_post_processor(const JsonNode& node) {
  PostProcessor processor;
  each_step(node, "processors",
            [&](const JsonNode& step) { read_post_processor_step(step, processor); });
  return processor;
}

std::optional<Decoder> read_decoder(const JsonNode& node) {
  if (node.is_null()) return std::nullopt;
  Decoder decoder;
  each_step(node, "decoders", [&](const JsonNode& step) { read_decoder_step(step, decoder); });
  return decoder;
}

Tokenizer parse_tokenizer_json(const std::filesystem::path& path, std::string_view text) {
  const auto json = parse_json(path, text);
  const JsonNode file(path.string(), json);
  file.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                    "pre_tokenizer", "post_processor", "decoder", "model"});
  if (file["version"].text_or("1.0") != "1.0") file["version"].refuse("1.0");
  auto parts = std::make_unique<Tokenizer::Parts>();
  parts->model = read_model(file["model"]);
  parts->normalizer = read_normalizer(file["normalizer"]);
  parts->pre_tokenizer = read_pre_tokenizer(file["pre_tokenizer"]);
  parts->post_processor = read_post_processor(file["post_processor"]);
  parts->decoder = read_decoder(file["decoder"]);
  parts->added = AddedTokens(read_added_tokens(file["added_tokens"], vocabulary_of(parts->model)),
                             parts->normalizer);
  take_bytes(parts->model, parts->pre_tokenizer);
  return Tokenizer(std::move(parts));
}

Tokenizer load_tokenizer_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_tokenizer_json(path, file.text());
}

}  // namespace tessera::text
