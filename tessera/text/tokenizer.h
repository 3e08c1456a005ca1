// Text into tokens and back, with tokenizers as published models have them.
//
//   const auto tokenizer = text::load_tokenizer("models/Qwen2.5-0.5B");
//   const auto encoding = tokenizer.encode("Hello");       // ids, and which characters each stands for
//   const auto text = tokenizer.decode(encoding.ids);
//
// Exact: the same ids, offsets and text as the library that a file was made for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Code points [begin, end) of a text.
struct Offsets {
  uint32_t begin = 0, end = 0;
  bool operator==(const Offsets&) const = default;
};

struct Encoding {
  std::vector<uint32_t> ids;
  /// From the character with the token's first byte to the one with its last; [0, 0) for what stands
  /// around a text.
  std::vector<Offsets> offsets;
  std::vector<uint32_t> type_ids;  ///< 0, or 1 for what belongs to the second of two texts
};

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0, end = 0;
};

struct EncodeOptions {
  bool add_special_tokens = true;  ///< what the tokenizer puts around a text
  /// False: what looks like a special token is text (other added tokens are still found).
  bool find_special_tokens = true;
  /// The text goes on from one before it: nothing is put before it but by add_special_tokens.
  bool continues_text = false;
  /// In these bytes, ascending, what looks like a special token is text: what a user wrote. Not of an
  /// Encoder.
  std::span<const ByteRange> plain = {};
};

/// A tokenizer; `load_tokenizer` makes one. Threads may share it.
class Tokenizer {
 public:
  struct Parts;  ///< tokenizer_parts.h
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  /// With offsets. What is no UTF-8 counts as U+FFFD, as Python's errors="replace" has it.
  /// UserError: a text of 4 GiB, a word that a model without unknown tokens does not know.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Two texts, as models of pairs of sentences take them.
  Encoding encode_pair(std::string_view first, std::string_view second,
                       const EncodeOptions& options = {}) const;

  /// Ids that no token has are left out. What bytes are no UTF-8 becomes U+FFFD.
  std::string decode(std::span<const uint32_t> ids, bool skip_special_tokens = false) const;

  std::optional<uint32_t> id_of(std::string_view token) const;
  std::optional<std::string> token_of(uint32_t id) const;
  bool is_special(uint32_t id) const;
  size_t num_ids() const;  ///< one more than the largest id
  /// What ends a text: `eos_token` of tokenizer_config.json or special_tokens_map.json beside the
  /// file, else what the format has of itself (not tokenizer.json, not vocab.txt).
  std::optional<uint32_t> end_of_text() const { return end_of_text_; }
  void set_end_of_text(uint32_t id) { end_of_text_ = id; }

  const Parts& parts() const { return *parts_; }

 private:
  std::unique_ptr<const Parts> parts_;
  std::optional<uint32_t> end_of_text_;
};

/// Encodes many texts in one thread, several times as fast as Tokenizer::encode: without offsets,
/// and with a memory of words (some 10 MiB). The tokenizer must outlive it.
class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  /// Appends the same ids as encode(). Takes about six times the bytes of `text` meanwhile.
  void append(std::string_view text, std::vector<uint32_t>& ids, const EncodeOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Turns ids into text one at a time, and holds back what is not yet a whole character. All that it
/// returned, with finish(), is decode() of all ids (unless single bytes that are no UTF-8 follow shown ones:
/// tokenizers with byte_fallback then take all of them for unknown). The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = false)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  std::string push(uint32_t id);  ///< what can be shown now; may be empty
  std::string finish();           ///< the rest; bytes that never became a character as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<uint32_t> ids_;  // the last that were shown, and those that wait
  size_t shown_ids_ = 0;
  std::string shown_;  // text of those that were shown
};

/// Where a text can be cut, so that the tokens of both parts, one behind the other, are those of the
/// whole.
struct TextCut {
  size_t at = 0;
  bool continues = true;  ///< `continues_text` for what is behind it; false: as a text of its own
};
/// One of the first such places behind `from`; none if a few dozen were tried in vain. Looks at blanks
/// between words, ends of lines before others, and tries each on 256 bytes to both sides. `options`
/// are those of the parts; special tokens around a text are left out.
std::optional<TextCut> place_to_cut(const Tokenizer& tokenizer, std::string_view text, size_t from,
                                    EncodeOptions options = {});

/// Reads a tokenizer: a folder (tokenizer.json, else tokenizer.model, else vocab.json with
/// merges.txt, else vocab.txt), or one of these files. tokenizer.model is SentencePiece's or
/// tiktoken's, by its content. Takes up to a second for 128,000 tokens.
/// UserError, in one line with file, key and value: none there, no JSON, and whatever the file asks
/// for that is not known here. Its `truncation` and `padding` are not applied.
Tokenizer load_tokenizer(const std::filesystem::path& path);

/// The files that load_tokenizer reads for `path`, and those that are beside them and say more.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& path);

/// Has a model's folder a tokenizer?
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace tessera::text
