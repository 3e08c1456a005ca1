// SentencePiece's tokenizers as llama.cpp has them: of two neighbours those are merged first whose
// piece has the highest score.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/strict_json.h"
#include "tessera/checkpoint/formats/gguf/tokens.h"
#include "tessera/text/sentencepiece_file.h"
#include "tessera/text/vocabulary.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kBlank = "\xE2\x96\x81";  // stands for a space
constexpr double kUnusedScore = -10000, kAddedScore = -1000;

std::string with_blanks(std::string text) {
  for (size_t at = 0; (at = text.find(kBlank, at)) != std::string::npos;)
    text.replace(at, std::string_view(kBlank).size(), " ");
  return text;
}

/// Tokens with scores, and whether a text begins with a space of its own.
struct Pieces {
  GgufTokens tokens;
  std::vector<double> scores;
  bool space_first = true;

  explicit Pieces(int64_t vocab_size)
      : tokens(vocab_size), scores(static_cast<size_t>(vocab_size), kUnusedScore) {}

  void put(const std::string& text, const json& id, TokenKind kind, double score,
           const std::string& where) {
    scores[tokens.put(text, id, kind, where)] = score;
  }

  /// A token of its own beside the model's; one that the model has keeps its score. `in_pieces`: it is
  /// looked for where blanks are pieces already.
  void put_added(const std::string& text, const json& id, bool special, bool in_pieces,
                 const std::string& where) {
    const bool control = special || looks_special(text);
    const auto known = tokens.ids.find(text);
    const double score = known == tokens.ids.end() ? kAddedScore : scores[known->second];
    put(control || !in_pieces ? text : with_blanks(text), id,
        control ? TokenKind::control : TokenKind::user_defined, score, where);
  }
};

TokenKind kind_of(text::PieceType type) {
  switch (type) {
    case text::PieceType::unknown:
      return TokenKind::unknown;
    case text::PieceType::control:
      return TokenKind::control;
    case text::PieceType::user_defined:
      return TokenKind::user_defined;
    case text::PieceType::unused:
      return TokenKind::unused;
    case text::PieceType::byte:
      return TokenKind::byte;
    case text::PieceType::normal:
      break;
  }
  return TokenKind::normal;
}

Pieces pieces_of_model(const TokenizerFiles& files, int64_t vocab_size) {
  const auto where = files.where("tokenizer.model");
  const MappedFile file(where);
  const auto stored = text::read_sentencepiece_file(where, file.text());
  if (stored.type != static_cast<uint64_t>(text::ModelType::bpe))
    user_error("{}: expected BPE, the kind of SentencePiece model that is written to GGUF", where);
  if (!stored.character_map.empty() || stored.remove_extra || stored.whitespace_as_suffix) {
    user_error(
        "{}: it normalizes texts (nfkc, extra blanks, a blank behind), which llama.cpp does "
        "not do",
        where);
  }
  Pieces result(vocab_size);
  result.space_first = stored.dummy_prefix;
  for (size_t id = 0; id < stored.pieces.size(); ++id) {
    const auto& piece = stored.pieces[id];
    result.put(piece.text, id, kind_of(piece.type), double{piece.score}, where);
  }
  return result;
}

/// How tokenizer.json turns blanks into pieces: true where one is put before a text. UserError: it
/// does what llama.cpp does not.
bool puts_space_first(const json& root, const std::string& where) {
  const auto listed = [](const json& step, const char* key) {
    const auto steps = value_at(step, {key});
    if (step.is_null()) return json(json::array());
    return steps.is_null() ? json::array({step}) : steps;
  };
  bool first = false;
  for (const auto& step : listed(value_at(root, {"normalizer"}), "normalizers")) {
    const auto type = value_at(step, {"type"});
    const bool prepends = type == "Prepend" && value_at(step, {"prepend"}) == kBlank;
    const bool replaces = type == "Replace" && value_at(step, {"pattern", "String"}) == " " &&
                          value_at(step, {"content"}) == kBlank;
    if (!prepends && !replaces)
      user_error("{}: normalizer: llama.cpp does not do this: {}", where, step.dump());
    first |= prepends;
  }
  for (const auto& step : listed(value_at(root, {"pre_tokenizer"}), "pretokenizers")) {
    const auto type = value_at(step, {"type"});
    const bool splits = type == "Split" && value_at(step, {"pattern", "String"}) == " ";
    if (splits) continue;  // there are none left
    const bool blanks = type == "Metaspace" && value_at(step, {"replacement"}) == kBlank &&
                        value_at(step, {"split"}) == false;
    if (!blanks)
      user_error("{}: pre_tokenizer: llama.cpp does not cut words so: {}", where, step.dump());
    first |= value_at(step, {"prepend_scheme"}) != "never";
  }
  return first;
}

/// The place of the merge that makes each token is its score, negative.
std::map<std::string, double> scores_of(const BpeMerges& merges) {
  std::map<std::string, double> scores;
  double rank = 0;
  for (const auto& [first, second] : merges) scores.emplace(first + second, rank--);
  return scores;
}

Pieces pieces_of_json(const TokenizerFiles& files, int64_t vocab_size) {
  const auto where = files.where("tokenizer.json");
  const auto& root = files.tokenizer;
  Pieces result(vocab_size);
  result.space_first = puts_space_first(root, where);
  const auto merges = bpe_merges(files);
  const auto scores = scores_of(merges);
  const auto unknown = value_at(root, {"model", "unk_token"});
  const auto vocabulary = value_at(root, {"model", "vocab"});
  for (const auto& [text, id] : vocabulary.items()) {
    const auto score = scores.find(text);
    const auto kind = text == unknown                  ? TokenKind::unknown
                      : text::byte_of_token(text) >= 0 ? TokenKind::byte
                                                       : TokenKind::normal;
    result.put(text, id, kind,
               score == scores.end() ? -static_cast<double>(merges.size()) : score->second, where);
  }
  return result;
}

/// What tokenizer.json, added_tokens.json and tokenizer_config.json add to the model's pieces.
void put_added(const TokenizerFiles& files, Pieces& pieces) {
  const auto added_file = files.folder / "added_tokens.json";
  if (fs::exists(added_file)) {
    const auto added = parse_strict_json(added_file, read_file(added_file));
    for (const auto& [text, id] : added.items())
      pieces.put_added(text, id, /*special=*/false, /*in_pieces=*/true, added_file.string());
  }
  const auto put = [&](const json& token, const json& id, const std::string& where) {
    const auto content = value_at(token, {"content"});
    if (!content.is_string()) user_error("{}: added tokens: expected a content", where);
    pieces.put_added(content.get<std::string>(), id, value_at(token, {"special"}) == true,
                     value_at(token, {"normalized"}) != false, where);
  };
  for (const auto& token : value_at(files.tokenizer, {"added_tokens"}))
    put(token, value_at(token, {"id"}), files.where("tokenizer.json"));
  const auto decoder = value_at(files.config, {"added_tokens_decoder"});
  for (const auto& [id, token] : decoder.items()) {
    const auto number = json::parse(id, nullptr, /*allow_exceptions=*/false);
    put(token, number, files.where("tokenizer_config.json"));
  }
}

}  // namespace

GgufMetadata sentencepiece_metadata(const TokenizerFiles& files, int64_t vocab_size) {
  const bool has_model = fs::exists(files.folder / "tokenizer.model");
  auto pieces = has_model ? pieces_of_model(files, vocab_size) : pieces_of_json(files, vocab_size);
  put_added(files, pieces);
  GgufMetadata result{{"tokenizer.ggml.model", gguf_string("llama")},
                      {"tokenizer.ggml.pre", gguf_string("default")},
                      {"tokenizer.ggml.tokens", gguf_strings(pieces.tokens.texts)},
                      {"tokenizer.ggml.scores", gguf_f32s(pieces.scores)},
                      {"tokenizer.ggml.token_type", gguf_i32s(pieces.tokens.kinds)},
                      {"tokenizer.ggml.add_space_prefix", gguf_bool(pieces.space_first)}};
  const auto special = special_metadata(files, pieces.tokens);
  result.insert(result.end(), special.begin(), special.end());
  return result;
}

}  // namespace tessera::checkpoint
