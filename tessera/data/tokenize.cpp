#include "tessera/data/tokenize.h"

#include <sys/stat.h>

#include <array>
#include <deque>
#include <limits>
#include <memory>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/encoding_threads.h"
#include "tessera/data/text_files.h"
#include "tessera/data/tokenize_state.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

struct Texts {
  std::vector<TextFile> files;  ///< those that hold anything, in the order of the sequence
  int64_t num_bytes = 0;
  std::string digest;  ///< of names, sizes and times
};

Texts list_inputs(const TokenizeOptions& options) {
  Texts texts;
  std::string known;
  for (const fs::path input : options.inputs) {
    for (const auto& path : list_text(input, options.extensions)) {
      std::error_code error;
      if (fs::equivalent(path, options.out, error)) {
        user_error("{}: is itself one of the inputs; choose another --out, or --extensions",
                   options.out.string());
      }
      const bool is_ours = fs::equivalent(path, partial_name(options.out), error) ||
                           fs::equivalent(path, state_name(options.out), error);
      if (is_ours) continue;
      struct stat status {};
      if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
        user_error("{}: expected a file that can be read", path.string());
      if (status.st_size == 0) continue;
      texts.files.push_back({path, status.st_size});
      texts.num_bytes += status.st_size;
      known += fmt::format("{} {} {}.{}\n", path.string(), status.st_size, status.st_mtim.tv_sec,
                           status.st_mtim.tv_nsec);
    }
  }
  if (texts.files.empty())
    user_error("tokenize: expected text, got no input or nothing but empty files");
  texts.digest = sha256(known);
  return texts;
}

void check_output(const fs::path& out) {
  const auto folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    user_error("{}: its folder does not exist; create it first", out.string());
  if (fs::is_directory(out)) user_error("{}: expected a file to write, got a folder", out.string());
}

/// What turns text into ids, and what the ids depend on.
struct Vocabulary {
  std::unique_ptr<text::Tokenizer> tokenizer;  ///< nullptr: bytes
  std::vector<uint32_t> end_of_text;
  std::string digest = "one token a byte";
  TokenType type = TokenType::uint16;
};

std::vector<uint32_t> end_of_text(const TokenizeOptions& options,
                                  const text::Tokenizer& tokenizer) {
  if (!options.end_of_text) {
    const auto id = tokenizer.end_of_text();
    if (id) return {*id};
    user_error(
        "{}: says nothing of an eos_token, which stands behind each text; set --end-of-text to a "
        "token of it, or to none",
        options.tokenizer);
  }
  if (*options.end_of_text == "none") return {};
  const auto id = tokenizer.id_of(*options.end_of_text);
  if (id) return {*id};
  user_error("--end-of-text: expected none or a token of {}, got '{}'", options.tokenizer,
             *options.end_of_text);
}

TokenType type_of(const TokenizeOptions& options, size_t num_ids) {
  const bool fits = num_ids <= size_t{std::numeric_limits<uint16_t>::max()} + 1;
  if (options.dtype == TokenDtype::uint16 && !fits)
    user_error(
        "--dtype uint16: expected a type that holds the {} ids of {}; leave it out, or set "
        "uint32",
        num_ids, options.tokenizer);
  if (options.dtype == TokenDtype::uint16 || (options.dtype == TokenDtype::automatic && fits))
    return TokenType::uint16;
  return options.header == TokenHeader::megatron ? TokenType::int32 : TokenType::uint32;
}

Vocabulary load_vocabulary(const TokenizeOptions& options) {
  Vocabulary vocabulary;
  if (options.tokenizer.empty()) {
    if (options.end_of_text)
      user_error("--end-of-text: needs --tokenizer; without, a byte 0 stands between two texts");
    vocabulary.type = type_of(options, 256);
    return vocabulary;
  }
  vocabulary.tokenizer = std::make_unique<text::Tokenizer>(text::load_tokenizer(options.tokenizer));
  vocabulary.end_of_text = end_of_text(options, *vocabulary.tokenizer);
  vocabulary.type = type_of(options, vocabulary.tokenizer->num_ids());
  std::string sums;
  for (const auto& file : text::tokenizer_files(options.tokenizer))
    sums += sha256(MappedFile(file).bytes());
  vocabulary.digest = sha256(sums);
  return vocabulary;
}

TokenizeSettings settings_of(const TokenizeOptions& options, const Texts& texts,
                             const Vocabulary& vocabulary) {
  constexpr std::array kHeaders{"none", "llmc", "megatron"};
  const auto& end = vocabulary.end_of_text;
  return {{"inputs", fmt::format("{} files, {} bytes, {:.16}", texts.files.size(), texts.num_bytes,
                                 texts.digest)},
          {"tokenizer", fmt::format("{:.16}", vocabulary.digest)},
          {"end of text", end.empty() ? "none" : std::to_string(end[0])},
          {"dtype", std::string(name_of(vocabulary.type))},
          {"header", kHeaders[static_cast<size_t>(options.header)]}};
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  check_output(options.out);
  const auto texts = list_inputs(options);
  const auto vocabulary = load_vocabulary(options);
  const auto settings = settings_of(options, texts, vocabulary);
  auto earlier = load_state(options.out, settings, texts.files.size());
  if (!is_there(partial_name(options.out))) earlier.reset();  // ended just before it was forgotten
  auto state = earlier.value_or(TokenizeState());
  const TokenizeResult begun{.earlier_bytes = state.done_bytes, .type = vocabulary.type};
  TokenWriter writer(options.out, {.type = vocabulary.type, .header = options.header},
                     earlier ? std::optional(state.written) : std::nullopt);
  TextReader reader(texts.files, vocabulary.tokenizer.get(), state.next, options.part_bytes);
  EncodingThreads threads(vocabulary.tokenizer.get(), options.num_threads);
  const auto save = [&] {
    state.written = writer.flush();
    save_state(options.out, settings, state);
  };
  save();  // whatever stands under these names is ours from now on
  std::deque<std::future<EncodedPart>> running;
  const auto refill = [&] {
    while (running.size() < 2 * static_cast<size_t>(options.num_threads)) {
      auto part = reader.next();
      if (!part) return;
      running.push_back(threads.encode(std::move(*part)));
    }
  };
  int64_t saved_bytes = state.done_bytes;
  for (refill(); !running.empty(); refill()) {
    const auto encoded = running.front().get();
    running.pop_front();
    writer.append(encoded.ids);
    state.next = encoded.part.next;
    if (encoded.part.ends) {
      const bool is_last = state.next.file == texts.files.size();
      if (!vocabulary.tokenizer && !is_last) writer.append(std::array<uint32_t, 1>{0});
      writer.append(vocabulary.end_of_text);
      writer.end_document();
    }
    state.done_bytes += static_cast<int64_t>(encoded.part.text.size());
    if (options.on_progress)
      options.on_progress(begun.earlier_bytes, state.done_bytes, texts.num_bytes);
    if (state.done_bytes - saved_bytes < options.bytes_between_saves) continue;
    save();
    saved_bytes = state.done_bytes;
  }
  writer.commit();
  fs::remove(state_name(options.out));
  auto result = begun;
  result.num_files = static_cast<int64_t>(texts.files.size());
  result.num_tokens = writer.written().num_tokens;
  return result;
}

}  // namespace tessera::data
