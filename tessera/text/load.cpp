// Which file a tokenizer is read from, and the formats that hold little more than a vocabulary.
#include <fmt/ranges.h>

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
  if (space == line.npos || space == 0 || space % 4 != 0 || space + 1 == line.size()) return false;
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

/// Files as old as these say by the name of a program what is to be done.
void expect_class(const JsonNode& config, std::initializer_list<std::string_view> known) {
  const auto node = config["tokenizer_class"];
  auto name = node.text_or("");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name.empty()) return;
  if (std::find(known.begin(), known.end(), name) == known.end())
    node.refuse(fmt::format("{} (others only from a tokenizer.json)", fmt::join(known, " or ")));
}

/// The expression by which texts are cut; puts a normalizer into `parts` if there is one.
std::string_view read_byte_level_config(const JsonNode& config, Tokenizer::Parts& parts) {
  constexpr std::string_view kQwen2Pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  expect_class(config, {"GPT2Tokenizer", "Qwen2Tokenizer"});
  const auto prefix = config["add_prefix_space"];
  if (prefix.truth_or(false)) prefix.refuse("false (others only from a tokenizer.json)");
  if (!config["tokenizer_class"].text_or("").starts_with("Qwen2")) return gpt2_pattern();
  parts.normalizer.emplace_back(NormalForm::nfc);
  return kQwen2Pattern;
}

/// {"50256": {"content": "<|endoftext|>", "special": true, ..}, ..}
std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& node) {
  nlohmann::json list = nlohmann::json::array();
  if (node.is_null()) return {};
  node.expect_object();
  for (const auto& [id, token] : node.value().items()) {
    const auto entry = node[id];
    entry.expect_object();
    if (id.empty() || id.size() > 8 || id.find_first_not_of("0123456789") != id.npos)
      entry.refuse("ids as keys");
    list.push_back(token);
    list.back()["id"] = std::stoul(id);
  }
  return read_added_tokens(JsonNode(node.where(), list), {});
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
  const auto bytes =
      std::ranges::count_if(by_rank, [](const auto& token) { return token.second.size() == 1; });
  if (bytes != 256) {
    user_error("{}: expected each of the 256 bytes to be a token, got {} of them", path.string(),
               bytes);
  }
  add_all_merges(model, by_rank, ids);
  model.ignore_merges = true;
  auto parts = std::make_unique<Tokenizer::Parts>();
  const auto first = static_cast<uint32_t>(by_rank.size());
  parts->model = std::move(model);
  parts->pre_tokenizer = byte_level(path.string(), kLlama3Pattern);
  parts->decoder.emplace().emplace_back(ByteLevelDecoding{});
  parts->added = AddedTokens(llama3_tokens(first), {});
  parts->end_of_text = first + 1;
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
  const auto config = config_beside(vocab);
  const auto pattern = read_byte_level_config(JsonNode(config.path.string(), config.json), *parts);
  auto added = read_added_tokens_decoder(
      JsonNode(config.path.string(), config.json)["added_tokens_decoder"]);
  constexpr std::string_view kEnd = "<|endoftext|>";  // of both, and not named by the old files
  parts->end_of_text = model.vocabulary.id_of(kEnd);
  if (added.empty() && parts->end_of_text)
    added.push_back(special_token(*parts->end_of_text, std::string(kEnd)));
  parts->added = AddedTokens(std::move(added), parts->normalizer);
  parts->model = std::move(model);
  parts->pre_tokenizer = byte_level(vocab.string(), pattern);
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
  const auto config = config_beside(path);
  const JsonNode node(config.path.string(), config.json);
  expect_class(node, {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"});
  BertCleaning cleaning;
  cleaning.lowercase = node["do_lower_case"].truth_or(true);
  cleaning.strip_accents = node["strip_accents"].truth_or(cleaning.lowercase);
  cleaning.chinese_characters = node["tokenize_chinese_chars"].truth_or(true);
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

/// In a model's folder; of several the last counts.
constexpr const char* kTokenizerNames[] = {"vocab.txt", "vocab.json", "tokenizer.model",
                                           "tokenizer.json"};

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(kTokenizerNames,
                             [&](const char* name) { return fs::exists(folder / name); });
}

std::vector<fs::path> tokenizer_files(const fs::path& path) {
  if (!fs::exists(path)) user_error("{}: no such file or folder", path.string());
  auto file = path;
  if (fs::is_directory(path)) {
    for (const auto* name : kTokenizerNames) {
      if (fs::exists(path / name)) file = path / name;
    }
    if (file == path)
      user_error(
          "{}: expected a tokenizer in this folder, got neither tokenizer.json nor "
          "tokenizer.model, vocab.json, vocab.txt",
          path.string());
  }
  if (file.filename() == "merges.txt") file.replace_filename("vocab.json");
  std::vector<fs::path> files{file};
  if (file.filename() == "vocab.json") files.push_back(file.parent_path() / "merges.txt");
  for (const auto* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto beside = file.parent_path() / name;
    if (fs::exists(beside)) files.push_back(beside);
  }
  return files;
}

Tokenizer load_tokenizer(const fs::path& path) {
  const auto file = tokenizer_files(path).front();
  const auto load = [&] {
    if (file.filename() == "vocab.json") return load_vocab_and_merges(file);
    if (file.extension() == ".json") return load_tokenizer_json(file);
    if (file.extension() == ".txt") return load_vocab_txt(file);
    if (file.extension() == ".model")
      return is_tiktoken(file) ? load_tiktoken(file) : load_sentencepiece(file);
    user_error(
        "{}: expected a tokenizer: a folder, or tokenizer.json, tokenizer.model, vocab.json, "
        "vocab.txt",
        path.string());
  };
  auto tokenizer = load();
  if (const auto id = end_of_text_beside(file, tokenizer)) tokenizer.set_end_of_text(*id);
  return tokenizer;
}

}  // namespace tessera::text
