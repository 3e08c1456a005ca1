// Which file a tokenizer is read from, and the formats that hold little more than a vocabulary.
#include <algorithm>
#include <array>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/text/load_steps.h"
#include "tessera/text/unicode.h"

namespace tessera::text {
namespace fs = std::filesystem;
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

PreTokenizer byte_level(const std::string& where, std::string_view pattern) {
  PreTokenizer cuts;
  SplitCut split;
  split.pattern.emplace(where, pattern);
  cuts.emplace_back(std::move(split));
  cuts.emplace_back(ByteLevelCut{});
  return cuts;
}

AddedToken special_token(uint32_t id, std::string content) {
  AddedToken token;
  token.id = id;
  token.content = std::move(content);
  token.special = true;
  return token;
}

std::string letters_of(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) append_utf8(letters, letter_of_byte(static_cast<uint8_t>(byte)));
  return letters;
}

/// "IQ== 0": a token in base64 and its rank. False: the line is none.
bool read_tiktoken_line(std::string_view line, std::string& bytes, uint32_t& rank) {
  const auto space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size()) return false;
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  bytes.clear();
  uint32_t bits = 0;
  int held = 0;
  for (const char letter : line.substr(0, space)) {
    if (letter == '=') break;
    const auto value = kLetters.find(letter);
    if (value == kLetters.npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xFF);
  }
  uint64_t number = 0;
  for (const char digit : line.substr(space + 1)) {
    if (digit < '0' || digit > '9' || number > JsonNode::kMaxId) return false;
    number = number * 10 + static_cast<uint64_t>(digit - '0');
  }
  rank = static_cast<uint32_t>(number);
  return !bytes.empty() && number <= JsonNode::kMaxId;
}

// Llama 3 alone publishes its tokenizer so; the file has neither its expression nor special tokens.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<AddedToken> llama3_tokens(uint32_t first) {
  std::vector<std::string> names{"<|begin_of_text|>",
                                 "<|end_of_text|>",
                                 "<|reserved_special_token_0|>",
                                 "<|reserved_special_token_1|>",
                                 "<|finetune_right_pad_id|>",
                                 "<|step_id|>",
                                 "<|start_header_id|>",
                                 "<|end_header_id|>",
                                 "<|eom_id|>",
                                 "<|eot_id|>",
                                 "<|python_tag|>"};
  for (int i = 2; names.size() < 256; ++i)
    names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  std::vector<AddedToken> tokens;
  for (auto& name : names) tokens.push_back(special_token(first++, std::move(name)));
  return tokens;
}

/// What is put together from two tokens has its own rank: each way to divide a token is a merge.
void add_all_merges(Bpe& model, const std::map<uint32_t, std::string>& by_rank,
                    const TokenIds& ids) {
  for (const auto& [rank, bytes] : by_rank) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(std::string_view(bytes).substr(0, cut));
      const auto right = ids.find(std::string_view(bytes).substr(cut));
      if (left != ids.end() && right != ids.end())
        model.merges.add(left->second, right->second, {rank, rank});
    }
  }
}

}  // namespace

Tokenizer load_tiktoken(const fs::path& path) {
  const MappedFile file(path);
  std::map<uint32_t, std::string> by_rank;
  TokenIds ids;
  Bpe model;
  size_t number = 0;
  for (const auto line : lines_of(file.text())) {
    ++number;
    if (line.empty()) continue;
    std::string bytes;
    uint32_t rank = 0;
    if (!read_tiktoken_line(line, bytes, rank))
      user_error("{}: line {}: expected a token in base64 and its rank", path.string(), number);
    if (!by_rank.emplace(rank, bytes).second || !ids.emplace(bytes, rank).second)
      user_error("{}: line {}: its token or its rank {} stands twice", path.string(), number, rank);
    model.vocabulary.add(letters_of(bytes), rank);
  }
  if (by_rank.empty() || by_rank.rbegin()->first + 1 != by_rank.size())
    user_error("{}: expected the ranks 0, 1, 2, .., got {} of them with gaps", path.string(),
               by_rank.size());
  add_all_merges(model, by_rank, ids);
  model.ignore_merges = true;
  auto parts = std::make_unique<Tokenizer::Parts>();
  const auto first = static_cast<uint32_t>(by_rank.size());
  parts->model = std::move(model);
  parts->pre_tokenizer = byte_level(path.string(), kLlama3Pattern);
  parts->decoder.emplace().emplace_back(ByteLevelDecoding{});
  parts->added = AddedTokens(llama3_tokens(first), {});
  const TemplatePart begin{TemplatePart::Kind::special, {first}, 0},
      a{TemplatePart::Kind::first, {}, 0};
  const TemplatePart again{TemplatePart::Kind::special, {first}, 1},
      b{TemplatePart::Kind::second, {}, 1};
  parts->post_processor.single = Template{begin, a};
  parts->post_processor.pair = Template{begin, a, again, b};
  take_bytes(parts->model, parts->pre_tokenizer);
  return Tokenizer(std::move(parts));
}

Tokenizer load_vocab_and_merges(const fs::path& vocab) {
  const MappedFile vocab_file(vocab);
  const auto merges_path = vocab.parent_path() / "merges.txt";
  const MappedFile merges(merges_path);
  const auto json = parse_json(vocab, vocab_file.text());
  Bpe model;
  const JsonNode node(vocab.string(), json);
  node.expect_object();
  for (const auto& [token, id] : json.items()) model.vocabulary.add(token, node[token].count());
  uint32_t rank = 0;
  for (const auto line : lines_of(merges.text())) {
    if (line.starts_with("#version") || line.empty()) continue;
    const auto space = line.find(' ');
    if (space == line.npos)
      user_error("{}: expected two tokens a line, got one after {} merges", merges_path.string(),
                 rank);
    add_merge(model, merges_path.string(), line.substr(0, space), line.substr(space + 1), rank);
    ++rank;
  }
  auto parts = std::make_unique<Tokenizer::Parts>();
  constexpr std::string_view kEnd =
      "<|endoftext|>";  // GPT-2's only one, which its files do not name
  if (const auto id = model.vocabulary.id_of(kEnd))
    parts->added = AddedTokens({special_token(*id, std::string(kEnd))}, {});
  parts->model = std::move(model);
  parts->pre_tokenizer = byte_level(vocab.string(), gpt2_pattern());
  parts->decoder.emplace().emplace_back(ByteLevelDecoding{});
  take_bytes(parts->model, parts->pre_tokenizer);
  return Tokenizer(std::move(parts));
}

Tokenizer load_vocab_txt(const fs::path& path) {
  const MappedFile file(path);
  WordPiece model;
  uint32_t id = 0;
  for (const auto line : lines_of(file.text())) model.vocabulary.add(line, id++);
  std::vector<AddedToken> special;
  for (const std::string name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    const auto found = model.vocabulary.id_of(name);
    if (!found)
      user_error("{}: expected BERT's vocabulary, got one without {}", path.string(), name);
    special.push_back(special_token(*found, name));
  }
  model.unknown = special[1].id;
  const auto config = path.parent_path() / "tokenizer_config.json";
  BertCleaning cleaning;
  if (fs::exists(config)) {
    const auto json = parse_json(config, read_file(config));
    const JsonNode node(config.string(), json);
    cleaning.lowercase = node["do_lower_case"].truth_or(true);
    cleaning.strip_accents = node["strip_accents"].truth_or(cleaning.lowercase);
    cleaning.chinese_characters = node["tokenize_chinese_chars"].truth_or(true);
  }
  auto parts = std::make_unique<Tokenizer::Parts>();
  const TemplatePart cls{TemplatePart::Kind::special, {special[2].id}, 0},
      a{TemplatePart::Kind::first, {}, 0};
  const TemplatePart sep{TemplatePart::Kind::special, {special[3].id}, 0},
      b{TemplatePart::Kind::second, {}, 1};
  const TemplatePart last{TemplatePart::Kind::special, {special[3].id}, 1};
  parts->post_processor.single = Template{cls, a, sep};
  parts->post_processor.pair = Template{cls, a, sep, b, last};
  parts->normalizer.emplace_back(cleaning);
  parts->pre_tokenizer.emplace_back(ClassCut{CharacterClass::blank, CutBehavior::removed});
  parts->pre_tokenizer.emplace_back(ClassCut{CharacterClass::punctuation, CutBehavior::isolated});
  parts->decoder.emplace().emplace_back(WordPieceDecoding{});
  parts->added = AddedTokens(std::move(special), parts->normalizer);
  parts->model = std::move(model);
  return Tokenizer(std::move(parts));
}

namespace {

/// A file of lines of base64 and ranks, where SentencePiece's is binary.
bool is_tiktoken(const fs::path& path) {
  const MappedFile file(path);
  const auto text = file.text();
  std::string bytes;
  uint32_t rank = 0;
  return read_tiktoken_line(text.substr(0, std::min(text.find('\n'), text.size())), bytes, rank);
}

}  // namespace

Tokenizer load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) user_error("{}: no such file or folder", path.string());
  if (fs::is_directory(path)) {
    for (const auto* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}) {
      if (fs::exists(path / name)) return load_tokenizer(path / name);
    }
    user_error(
        "{}: expected a tokenizer in this folder, got neither tokenizer.json nor tokenizer.model, "
        "vocab.json, vocab.txt",
        path.string());
  }
  const auto name = path.filename().string();
  if (name == "vocab.json" || name == "merges.txt")
    return load_vocab_and_merges(path.parent_path() / "vocab.json");
  if (path.extension() == ".json") return load_tokenizer_json(path);
  if (path.extension() == ".txt") return load_vocab_txt(path);
  if (path.extension() == ".model")
    return is_tiktoken(path) ? load_tiktoken(path) : load_sentencepiece(path);
  user_error(
      "{}: expected a tokenizer: a folder, or tokenizer.json, tokenizer.model, vocab.json, "
      "vocab.txt",
      path.string());
}

}  // namespace tessera::text
