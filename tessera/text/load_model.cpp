// Models and added tokens of tokenizer.json.
#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/text/load_steps.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace {

Vocabulary read_vocabulary(const JsonNode& node) {
  node.expect_object();
  Vocabulary vocabulary;
  for (const auto& [token, id] : node.value().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > JsonNode::kMaxId)
      node[token].refuse(fmt::format("an id from 0 to {}", JsonNode::kMaxId));
    vocabulary.add(token, id.get<uint32_t>());
  }
  return vocabulary;
}

void read_merges(const JsonNode& node, Bpe& model) {
  node.expect_array();
  model.merges = Merges(node.size());
  uint32_t rank = 0;
  for (const auto& merge : node.value()) {
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      const auto space = both.find(' ');
      if (space != both.npos && both.find(' ', space + 1) == both.npos) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    }
    if (left.empty() || right.empty()) node[rank].refuse("two tokens");
    add_merge(model, node.where(), left, right, rank);
    ++rank;
  }
}

Bpe read_bpe(const JsonNode& node) {
  node.expect_keys({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                    "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges",
                    "cache_capacity"});
  Bpe model;
  const auto dropout = node["dropout"];
  if (!dropout.is_null() && dropout.number() != 0) dropout.refuse("no dropout");
  model.unknown = node["unk_token"].text_or("");
  model.prefix = node["continuing_subword_prefix"].text_or("");
  model.suffix = node["end_of_word_suffix"].text_or("");
  model.fuse_unknown = node["fuse_unk"].truth_or(false);
  model.byte_fallback = node["byte_fallback"].truth_or(false);
  model.ignore_merges = node["ignore_merges"].truth_or(false);
  model.vocabulary = read_vocabulary(node["vocab"]);
  if (!model.unknown.empty() && !model.vocabulary.id_of(model.unknown))
    node["unk_token"].refuse("a token of the vocabulary");
  read_merges(node["merges"], model);
  return model;
}

uint32_t read_unknown(const JsonNode& node, const Vocabulary& vocabulary) {
  const auto id = vocabulary.id_of(node.text());
  if (!id) node.refuse("a token of the vocabulary");
  return *id;
}

WordPiece read_word_piece(const JsonNode& node) {
  node.expect_keys({"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPiece model;
  model.vocabulary = read_vocabulary(node["vocab"]);
  model.unknown = read_unknown(node["unk_token"], model.vocabulary);
  model.prefix = node["continuing_subword_prefix"].text_or("##");
  const auto most = node["max_input_chars_per_word"];
  if (!most.is_null()) model.max_characters = most.count(std::numeric_limits<uint32_t>::max());
  return model;
}

WordLevel read_word_level(const JsonNode& node) {
  node.expect_keys({"unk_token", "vocab"});
  WordLevel model;
  model.vocabulary = read_vocabulary(node["vocab"]);
  model.unknown = model.vocabulary.id_of(node["unk_token"].text_or(""));
  return model;
}

Unigram read_unigram(const JsonNode& node) {
  node.expect_keys({"unk_id", "vocab", "byte_fallback"});
  Unigram model;
  const auto pieces = node["vocab"];
  pieces.expect_array();
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& entry = pieces.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      pieces[i].refuse("a piece and its score");
    const auto& piece = entry[0].get_ref<const std::string&>();
    model.scores.push_back(entry[1].get<double>());
    least = std::min(least, model.scores.back());
    model.vocabulary.set(piece, static_cast<uint32_t>(i));
    if (!piece.empty()) model.trie.add(piece, static_cast<uint32_t>(i));
  }
  model.unknown_score = least - 10;
  const auto unknown = node["unk_id"];
  if (pieces.size() == 0) pieces.refuse("pieces");
  if (unknown.is_null()) unknown.refuse("the id of the piece for what is unknown");
  model.unknown = unknown.count(static_cast<uint32_t>(pieces.size() - 1));
  model.byte_fallback = node["byte_fallback"].truth_or(false);
  return model;
}

/// Older files name no type: it shows by the keys.
std::string model_type(const JsonNode& node) {
  if (!node["type"].is_null()) return node.type();
  if (!node["merges"].is_null()) return "BPE";
  if (!node["unk_id"].is_null()) return "Unigram";
  return node["continuing_subword_prefix"].is_null() ? "WordLevel" : "WordPiece";
}

}  // namespace

void add_merge(Bpe& model, const std::string& where, std::string_view left, std::string_view right,
               uint32_t rank) {
  const auto a = model.vocabulary.id_of(left), b = model.vocabulary.id_of(right);
  const auto shown = [&] {
    return nlohmann::json(fmt::format("{} {}", left, right))
        .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  if (!a || !b)
    user_error("{}[{}]: expected two tokens of the vocabulary, got {}", where, rank, shown());
  const auto continues = right.substr(right.starts_with(model.prefix) ? model.prefix.size() : 0);
  const auto made = model.vocabulary.id_of(fmt::format("{}{}", left, continues));
  if (!made)
    user_error("{}[{}]: the vocabulary does not have what {} become", where, rank, shown());
  model.merges.add(*a, *b, {rank, *made});
}

void take_bytes(Model& model, PreTokenizer& pre_tokenizer) {
  auto* bpe = std::get_if<Bpe>(&model);
  auto* last = pre_tokenizer.empty() ? nullptr : std::get_if<ByteLevelCut>(&pre_tokenizer.back());
  if (bpe == nullptr || last == nullptr) return;
  if (!bpe->prefix.empty() || !bpe->suffix.empty() || bpe->byte_fallback) return;
  last->map = false;
  bpe->takes_bytes = true;
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = bpe->vocabulary.id_of(utf8_of(letter_of_byte(static_cast<uint8_t>(byte))));
    bpe->byte_ids[static_cast<size_t>(byte)] = id ? int64_t{*id} : -1;
  }
  if (!bpe->ignore_merges) return;
  for (uint32_t id = 0; id < bpe->vocabulary.end(); ++id) {
    const auto* token = bpe->vocabulary.token_of(id);
    if (token == nullptr) continue;
    std::string bytes;
    bool all = true;
    for (size_t at = 0; at < token->size() && all;) {
      const auto letter = character_at(*token, at);
      const int byte = byte_of_letter(letter.code);
      all = byte >= 0;
      bytes += static_cast<char>(byte);
      at += letter.bytes;
    }
    if (all) bpe->words.emplace(std::move(bytes), id);
  }
}

Model read_model(const JsonNode& node) {
  node.expect_object();
  const auto type = model_type(node);
  if (type == "BPE") return read_bpe(node);
  if (type == "WordPiece") return read_word_piece(node);
  if (type == "Unigram") return read_unigram(node);
  if (type == "WordLevel") return read_word_level(node);
  node["type"].refuse("a model that is known here (BPE, WordPiece, Unigram, WordLevel)");
}

std::vector<AddedToken> read_added_tokens(const JsonNode& node, const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (node.is_null()) return tokens;
  node.expect_array();
  for (size_t i = 0; i < node.size(); ++i) {
    const auto entry = node[i];
    entry.expect_keys(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = entry["id"].count();
    token.content = entry["content"].text();
    token.single_word = entry["single_word"].truth_or(false);
    token.lstrip = entry["lstrip"].truth_or(false);
    token.rstrip = entry["rstrip"].truth_or(false);
    token.special = entry["special"].truth_or(false);
    token.normalized = entry["normalized"].truth_or(!token.special);
    const auto id = vocabulary.id_of(token.content);
    if (id && *id != token.id)
      entry["id"].refuse(fmt::format("{}, which it has in the vocabulary", *id));
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace tessera::text
