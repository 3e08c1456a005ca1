// Normalizers and pre-tokenizers of tokenizer.json.
#include "tessera/text/load_steps.h"

#include "tessera/base/error.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

std::string decode_base64(const JsonNode& node) {
  const auto text = node.text();
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char letter : text) {
    if (letter == '=') break;
    constexpr std::string_view kLetters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto value = kLetters.find(letter);
    if (value == std::string_view::npos) node.refuse("base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  return bytes;
}

/// {"String": ..} or {"Regex": ..}: exactly one of the results is set.
void read_pattern(const JsonNode& node, std::optional<Pattern>& pattern, std::string& literal) {
  if (node.value().is_string()) {
    literal = node.text();
  } else {
    node.expect_keys({"String", "Regex"});
    const auto text = node["String"], expression = node["Regex"];
    if (text.is_null() == expression.is_null()) node.refuse("either String or Regex");
    if (text.is_null()) {
      pattern.emplace(expression.where(), expression.text());
      return;
    }
    literal = text.text();
  }
  if (literal.empty()) node.refuse("a text that is not empty");
}

BertCleaning read_bert(const JsonNode& step) {
  step.expect_keys({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertCleaning bert;
  bert.clean_text = step["clean_text"].truth_or(true);
  bert.chinese_characters = step["handle_chinese_chars"].truth_or(true);
  bert.lowercase = step["lowercase"].truth_or(true);
  bert.strip_accents = step["strip_accents"].truth_or(bert.lowercase);
  return bert;
}

void read_normalizer_step(const JsonNode& step, Normalizer& normalizer) {
  const auto type = step.type();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.expect_keys({});
    const bool compatible = type.size() == 4, composes = type.back() == 'C';
    normalizer.emplace_back(compatible ? (composes ? NormalForm::nfkc : NormalForm::nfkd)
                                       : (composes ? NormalForm::nfc : NormalForm::nfd));
  } else if (type == "Lowercase") {
    step.expect_keys({});
    normalizer.emplace_back(LowerCase{});
  } else if (type == "StripAccents") {
    step.expect_keys({});
    normalizer.emplace_back(StripAccents{});
  } else if (type == "Nmt") {
    step.expect_keys({});
    normalizer.emplace_back(NmtCleaning{});
  } else if (type == "Strip") {
    step.expect_keys({"strip_left", "strip_right"});
    normalizer.emplace_back(
        StripBlanks{step["strip_left"].truth_or(true), step["strip_right"].truth_or(true)});
  } else if (type == "Replace") {
    normalizer.emplace_back(read_replace(step));
  } else if (type == "Prepend") {
    step.expect_keys({"prepend"});
    normalizer.emplace_back(PrependText{step["prepend"].text()});
  } else if (type == "BertNormalizer") {
    normalizer.emplace_back(read_bert(step));
  } else if (type == "ByteLevel") {
    step.expect_keys({});
    normalizer.emplace_back(MapBytes{});
  } else if (type == "Precompiled") {
    step.expect_keys({"precompiled_charsmap"});
    const auto map = step["precompiled_charsmap"];
    normalizer.emplace_back(CharacterMap(map.where(), decode_base64(map)));
  } else {
    step["type"].refuse(
        "a normalizer that is known here (NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
        "Replace, Prepend, Precompiled, Nmt, BertNormalizer, ByteLevel, Sequence)");
  }
}

CutBehavior read_behavior(const JsonNode& node) {
  constexpr std::array kBehaviors{CutBehavior::removed, CutBehavior::isolated,
                                  CutBehavior::merged_with_previous, CutBehavior::merged_with_next,
                                  CutBehavior::contiguous};
  return kBehaviors[node.one_of(
      {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"})];
}

ByteLevelCut read_byte_level(const JsonNode& step) {
  step.expect_keys({"add_prefix_space", "trim_offsets", "use_regex"});
  ByteLevelCut cut;
  cut.prefix_space = step["add_prefix_space"].truth();
  if (step["use_regex"].truth_or(true)) cut.pattern.emplace(step.where(), gpt2_pattern());
  return cut;
}

SplitCut read_split(const JsonNode& step) {
  step.expect_keys({"pattern", "behavior", "invert"});
  SplitCut cut;
  read_pattern(step["pattern"], cut.pattern, cut.literal);
  cut.behavior = read_behavior(step["behavior"]);
  cut.invert = step["invert"].truth_or(false);
  return cut;
}

void read_pre_tokenizer_step(const JsonNode& step, PreTokenizer& cuts) {
  const auto type = step.type();
  if (type == "ByteLevel") {
    cuts.emplace_back(read_byte_level(step));
  } else if (type == "Split") {
    cuts.emplace_back(read_split(step));
  } else if (type == "Digits") {
    step.expect_keys({"individual_digits"});
    const bool single = step["individual_digits"].truth_or(false);
    cuts.emplace_back(ClassCut{CharacterClass::numeric,
                               single ? CutBehavior::isolated : CutBehavior::contiguous});
  } else if (type == "Punctuation") {
    step.expect_keys({"behavior"});
    const auto behavior = step["behavior"];
    cuts.emplace_back(ClassCut{CharacterClass::punctuation, behavior.is_null()
                                                                ? CutBehavior::isolated
                                                                : read_behavior(behavior)});
  } else if (type == "Whitespace") {
    step.expect_keys({});
    cuts.emplace_back(WordCut{});
  } else if (type == "WhitespaceSplit") {
    step.expect_keys({});
    cuts.emplace_back(ClassCut{CharacterClass::blank, CutBehavior::removed});
  } else if (type == "BertPreTokenizer") {
    step.expect_keys({});
    cuts.emplace_back(ClassCut{CharacterClass::blank, CutBehavior::removed});
    cuts.emplace_back(ClassCut{CharacterClass::punctuation, CutBehavior::isolated});
  } else if (type == "CharDelimiterSplit") {
    step.expect_keys({"delimiter"});
    SplitCut cut;
    cut.literal = step["delimiter"].text();
    cut.behavior = CutBehavior::removed;
    if (cut.literal.empty()) step["delimiter"].refuse("one character");
    cuts.emplace_back(std::move(cut));
  } else if (type == "Metaspace") {
    step.expect_keys({"replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    MetaspaceCut cut;
    cut.mark = step["replacement"].text();
    if (cut.mark.empty()) step["replacement"].refuse("one character");
    constexpr std::array kSchemes{Prepend::always, Prepend::first, Prepend::never};
    const auto scheme = step["prepend_scheme"];
    if (!scheme.is_null()) cut.prepend = kSchemes[scheme.one_of({"always", "first", "never"})];
    const bool prefix = step["add_prefix_space"].truth_or(true);
    if (!prefix) {
      if (!scheme.is_null() && cut.prepend != Prepend::never)
        step["add_prefix_space"].refuse("true, as prepend_scheme says");
      cut.prepend = Prepend::never;
    }
    cut.split = step["split"].truth_or(true);
    cuts.emplace_back(std::move(cut));
  } else if (type == "UnicodeScripts") {
    step.expect_keys({});
    cuts.emplace_back(ScriptCut{});
  } else {
    step["type"].refuse(
        "a pre-tokenizer that is known here (ByteLevel, Split, Digits, Whitespace, "
        "WhitespaceSplit, Punctuation, Metaspace, BertPreTokenizer, CharDelimiterSplit, "
        "UnicodeScripts, Sequence)");
  }
}

}  // namespace

ReplaceText read_replace(const JsonNode& node) {
  node.expect_keys({"pattern", "content"});
  ReplaceText replace;
  read_pattern(node["pattern"], replace.pattern, replace.literal);
  replace.content = node["content"].text();
  return replace;
}

Normalizer read_normalizer(const JsonNode& node) {
  Normalizer normalizer;
  each_step(node, "normalizers",
            [&](const JsonNode& step) { read_normalizer_step(step, normalizer); });
  return normalizer;
}

PreTokenizer read_pre_tokenizer(const JsonNode& node) {
  PreTokenizer cuts;
  each_step(node, "pretokenizers",
            [&](const JsonNode& step) { read_pre_tokenizer_step(step, cuts); });
  return cuts;
}

}  // namespace tessera::text
