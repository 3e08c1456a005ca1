#include "tessera/data/token_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/token_formats.h"

namespace tessera::data {
namespace {

int64_t first_byte_of(const TokenWriterOptions& options) {
  return options.header == TokenHeader::llmc ? kLlmcHeaderBytes : 0;
}

int64_t most_of(TokenType type) {
  if (type == TokenType::uint16) return std::numeric_limits<uint16_t>::max();
  return type == TokenType::int32 ? std::numeric_limits<int32_t>::max()
                                  : std::numeric_limits<uint32_t>::max();
}

template <typename T>
std::string bytes_of_numbers(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

template <typename T>
void put_number(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(T));
}

}  // namespace

std::filesystem::path partial_name(std::filesystem::path path) { return path += ".partial"; }

TokenWriter::TokenWriter(const std::filesystem::path& path, const TokenWriterOptions& options,
                         std::optional<WrittenTokens> done)
    : path_(path), partial_(partial_name(path)), options_(options) {
  const bool goes_on = done.has_value();
  if (goes_on) written_ = std::move(*done);
  const auto index = megatron_index_of(path_);
  if (options_.header == TokenHeader::megatron) {
    if (path_.extension() != ".bin")
      user_error("{}: expected a name that ends in .bin, beside which the .idx stands",
                 path_.string());
  } else if (std::filesystem::exists(index)) {
    user_error(
        "{}: stands beside, so that readers would take the new file for Megatron's; remove it, or "
        "choose another name",
        index.string());
  }
  ended_tokens_ = std::accumulate(written_.documents.begin(), written_.documents.end(), int64_t{0});
  open(goes_on);
}

TokenWriter::Descriptor::~Descriptor() {
  if (fd >= 0) ::close(fd);
}

void TokenWriter::open(bool goes_on) {
  file_.fd =
      ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (file_.fd < 0 && errno == ELOOP)
    user_error("{}: expected a file to write, got a link; remove it, or choose another name",
               partial_.string());
  if (file_.fd < 0) system_error(path_.string() + ": cannot be written");
  struct stat status {};
  if (::fstat(file_.fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1)
    user_error("{}: expected a file of our own; remove it, or choose another name",
               partial_.string());
  if (::flock(file_.fd, LOCK_EX | LOCK_NB) != 0)
    user_error("{}: is written by another process", path_.string());
  if (!goes_on && status.st_size > 0)
    user_error("{}: exists, and nothing says what it is; remove it, or choose another name",
               partial_.string());
  const int64_t end =
      written_.num_tokens == 0
          ? 0
          : first_byte_of(options_) + written_.num_tokens * token_bytes(options_.type);
  if (goes_on && status.st_size < end)
    user_error("{}: expected {} bytes or more to go on with, got {}; remove it to begin anew",
               partial_.string(), end, status.st_size);
  const auto first = std::max(end, first_byte_of(options_));
  if (::ftruncate(file_.fd, first) != 0 || ::lseek(file_.fd, first, SEEK_SET) < 0)
    system_error(path_.string() + ": cannot be written");
}

void TokenWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) system_error(path_.string() + ": cannot be written");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void TokenWriter::append(std::span<const uint32_t> tokens) {
  const auto most = most_of(options_.type);
  for (const uint32_t token : tokens) {
    if (token > most)
      user_error("{}: expected tokens from 0 to {} in {}, got {}", path_.string(), most,
                 name_of(options_.type), token);
  }
  written_.num_tokens += static_cast<int64_t>(tokens.size());
  constexpr int64_t kMostLlmc = std::numeric_limits<int32_t>::max();
  if (options_.header == TokenHeader::llmc && written_.num_tokens > kMostLlmc)
    user_error(
        "{}: an llm.c header counts at most {} tokens, got more; use no header, or write several "
        "files",
        path_.string(), kMostLlmc);
  if (token_bytes(options_.type) == 2) {
    write(bytes_of_numbers(std::vector<uint16_t>(tokens.begin(), tokens.end())));
  } else {
    write({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  }
}

void TokenWriter::end_document() {
  if (options_.header != TokenHeader::megatron) return;
  const int64_t tokens = written_.num_tokens - ended_tokens_;
  if (tokens > std::numeric_limits<int32_t>::max())
    user_error("{}: a Megatron index counts at most {} tokens a text, got {}; divide the text",
               path_.string(), std::numeric_limits<int32_t>::max(), tokens);
  written_.documents.push_back(tokens);
  ended_tokens_ = written_.num_tokens;
}

const WrittenTokens& TokenWriter::flush() {
  if (::fsync(file_.fd) != 0) system_error(path_.string() + ": cannot be flushed");
  return written_;
}

void TokenWriter::write_llmc_header() {
  const auto& kind = kLlmcKinds[options_.type == TokenType::uint16 ? 0 : 1];
  std::vector<int32_t> header(kLlmcHeaderInts);
  header[0] = kind.magic;
  header[1] = kind.version;
  header[2] = static_cast<int32_t>(written_.num_tokens);
  if (::lseek(file_.fd, 0, SEEK_SET) < 0) system_error(path_.string() + ": cannot be written");
  write(bytes_of_numbers(header));
}

void TokenWriter::write_megatron_index() const {
  const auto& sizes = written_.documents;
  const auto* type = std::ranges::find(kMegatronTypes, options_.type, &MegatronType::type);
  const auto count = static_cast<int64_t>(sizes.size());
  std::string index(kMegatronMagic);
  put_number<int64_t>(index, 1);
  put_number(index, type->code);
  put_number(index, count);
  put_number(index, count + 1);
  for (const int64_t size : sizes) put_number(index, static_cast<int32_t>(size));
  int64_t pointer = 0;
  for (const int64_t size : sizes) {
    put_number(index, pointer);
    pointer += size * token_bytes(options_.type);
  }
  for (int64_t document = 0; document <= count; ++document) put_number(index, document);
  write_file(megatron_index_of(path_), index);
}

void TokenWriter::commit() {
  if (options_.header == TokenHeader::llmc) write_llmc_header();
  flush();
  if (options_.header == TokenHeader::megatron) write_megatron_index();
  if (::rename(partial_.c_str(), path_.c_str()) != 0)
    system_error(path_.string() + ": cannot be renamed into place");
  ::close(std::exchange(file_.fd, -1));
}

}  // namespace tessera::data
