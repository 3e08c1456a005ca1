#include "tessera/data/token_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/data/text_files.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMapFromBytes = int64_t{1} << 20;
constexpr std::byte kDocumentEnd{0};

/// Calls `function` with a typed pointer to `data`.
template <typename Function>
auto with_type(TokenType type, const std::byte* data, Function function) {
  switch (type) {
    case TokenType::uint8:
      return function(reinterpret_cast<const uint8_t*>(data));
    case TokenType::uint16:
      return function(reinterpret_cast<const uint16_t*>(data));
    case TokenType::uint32:
      return function(reinterpret_cast<const uint32_t*>(data));
    case TokenType::int32:
      return function(reinterpret_cast<const int32_t*>(data));
    case TokenType::int64:
      return function(reinterpret_cast<const int64_t*>(data));
  }
  __builtin_unreachable();
}

/// Position of the first token outside [0, limit), or `count`.
template <typename T>
int64_t first_outside(const T* tokens, int64_t count, uint64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;  // a negative token becomes a large one
  if (limit > std::numeric_limits<Unsigned>::max()) return count;
  constexpr int64_t kBlock = 8192;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    Unsigned largest = 0;  // without a branch inside, the compiler vectorises this loop
    for (int64_t i = begin; i < end; ++i)
      largest = std::max(largest, static_cast<Unsigned>(tokens[i]));
    if (largest < limit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<Unsigned>(tokens[i]) >= limit) return i;
    }
  }
  return count;
}

void read_whole(const fs::path& path, std::span<std::byte> out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) user_error("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  ::close(fd);
  if (done < out.size()) {
    user_error("{}: expected {} bytes, got {}: unreadable, or changed meanwhile", path.string(),
               out.size(), done);
  }
}

/// A NUL early in a file is how git, too, tells that it is no text. Tokens have some among their first numbers.
void check_looks_like_text(const fs::path& path, DataFormat format) {
  const MappedFile file(path);
  const auto head = file.bytes().first(std::min<size_t>(file.bytes().size(), 8000));
  if (std::ranges::find(head, std::byte{0}) == head.end()) return;
  if (format == DataFormat::text) {
    user_error(
        "{}: expected text, got zero bytes, as files of tokens have them; set format to auto, or "
        "to what it is",
        path.string());
  }
  user_error(
      "{}: unknown format: expected a .bin of tokens, a Megatron .bin with .idx, or text; set "
      "format",
      path.string());
}

bool may_have_tokens(const fs::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx";
}

}  // namespace

TokenSource TokenSource::open(const TokenSourceOptions& options) {
  if (options.paths.empty()) user_error("data: expected at least one file or folder, got none");
  TokenSource source;
  for (const fs::path path : options.paths) source.append_path(path, options);
  return source;
}

void TokenSource::append_path(const fs::path& path, const TokenSourceOptions& options) {
  auto format = options.format;
  if (format == DataFormat::megatron || (format == DataFormat::automatic && is_megatron(path))) {
    return append_token_file(open_megatron(path, options.token_dtype));
  }
  if (!fs::exists(path))
    user_error("{}: no such file or folder; set {}", path.string(), options.name);
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    const std::vector<std::string> bin{".bin"};
    files = list_folder(path, format == DataFormat::tokens ? bin : options.extensions);
    if (format == DataFormat::automatic)
      format = std::ranges::all_of(files, may_have_tokens) ? DataFormat::tokens : DataFormat::text;
    for (const auto& file : files)
      if (format == DataFormat::text && may_have_tokens(file)) check_looks_like_text(file, format);
  } else {
    files = {path};
    if (format == DataFormat::automatic && path.extension() == ".bin") format = DataFormat::tokens;
    if (format != DataFormat::tokens) check_looks_like_text(path, format);
  }
  if (format != DataFormat::tokens) {
    if (options.token_dtype != TokenDtype::automatic) {
      user_error("{}: token_dtype has no effect on text, which is read by bytes; set it to auto",
                 path.string());
    }
    return append_text(files);
  }
  for (const auto& file : files) {
    if (file.extension() == ".idx") continue;  // read with its .bin
    append_token_file(is_megatron(file) ? open_megatron(file, options.token_dtype)
                                        : open_token_file(file, options.token_dtype));
  }
}

void TokenSource::append(Segment segment) {
  segment.begin = size_;
  segment.file = static_cast<uint32_t>(files_.size() - 1);
  size_ += segment.num_tokens;
  segments_.push_back(segment);
}

void TokenSource::append_token_file(TokenFile file) {
  ++num_token_files_;
  files_.push_back(file.file.path());
  append({.num_tokens = file.num_tokens,
          .data = file.file.bytes().data() + file.first_byte,
          .file_offset = file.first_byte,
          .type = file.type});
  mapped_.push_back(std::move(file.file));
}

void TokenSource::append_text(std::span<const fs::path> files) {
  std::vector<int64_t> sizes;
  int64_t small = 0, total = 0;
  for (const auto& path : files) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) user_error("{}: cannot be read: {}", path.string(), error.message());
    sizes.push_back(static_cast<int64_t>(size));
    total += sizes.back();
    if (sizes.back() < kMapFromBytes) small += sizes.back();
  }
  if (total == 0)
    user_error("{}: expected text, got nothing but empty files; set train", files.front().string());

  loaded_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(small)));
  std::byte* free = loaded_.back().get();
  for (size_t i = 0; i < files.size(); ++i) {
    if (sizes[i] == 0) continue;
    // Counted to the file before it, whose end it marks.
    if (!segments_.empty() && segments_.back().type == TokenType::uint8) {
      append({.num_tokens = 1, .data = &kDocumentEnd, .file_offset = segments_.back().num_tokens});
    }
    files_.push_back(files[i]);
    Segment segment{.num_tokens = sizes[i], .data = free};
    if (sizes[i] < kMapFromBytes) {
      read_whole(files[i], {free, static_cast<size_t>(sizes[i])});
      free += sizes[i];
    } else {
      mapped_.emplace_back(files[i]);
      segment.data = mapped_.back().bytes().data();
      segment.num_tokens = static_cast<int64_t>(mapped_.back().bytes().size());
    }
    append(segment);
  }
}

size_t TokenSource::segment_at(int64_t token) const {
  const auto after = std::ranges::upper_bound(segments_, token, {}, &Segment::begin);
  return static_cast<size_t>(after - segments_.begin()) - 1;
}

void TokenSource::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (begin < 0 || count > size_ - begin) {
    throw std::out_of_range(fmt::format("tokens [{}, {}) of {}", begin, begin + count, size_));
  }
  int64_t done = 0;
  for (size_t i = count == 0 ? 0 : segment_at(begin); done < count; ++i) {
    const auto& segment = segments_[i];
    const int64_t skip = begin + done - segment.begin;
    const int64_t part = std::min(count - done, segment.num_tokens - skip);
    with_type(segment.type, segment.data,
              [&](const auto* tokens) { std::copy_n(tokens + skip, part, out.data() + done); });
    done += part;
  }
  if (vocab_size_ == 0) return;
  const int64_t outside = first_outside(out.data(), count, static_cast<uint64_t>(vocab_size_));
  if (outside < count) refuse(begin + outside);
}

std::string TokenSource::sample_digest() const {
  constexpr int64_t kBlocks = 16, kBytes = 4096;
  std::string sampled;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const int64_t token = size_ / kBlocks * i + size_ % kBlocks * i / kBlocks;
    if (size_ == 0) break;
    const auto& segment = segments_[segment_at(token)];
    const int64_t begin = (token - segment.begin) * token_bytes(segment.type);
    const int64_t end = std::min(begin + kBytes, segment.num_tokens * token_bytes(segment.type));
    sampled.append(reinterpret_cast<const char*>(segment.data + begin),
                   static_cast<size_t>(end - begin));
  }
  return sha256(sampled);
}

void TokenSource::check_vocabulary(int64_t vocab_size, int64_t scan_bytes) {
  vocab_size_ = vocab_size;
  for (const auto& segment : segments_) {
    const int64_t count = std::min(segment.num_tokens, scan_bytes / token_bytes(segment.type));
    const int64_t outside = with_type(segment.type, segment.data, [&](const auto* tokens) {
      return first_outside(tokens, count, static_cast<uint64_t>(vocab_size));
    });
    if (outside < count) refuse(segment.begin + outside);
    scan_bytes -= count * token_bytes(segment.type);
  }
}

void TokenSource::refuse(int64_t token_index) const {
  const auto& segment = segments_[segment_at(token_index)];
  const int64_t position = token_index - segment.begin;
  const auto token = with_type(segment.type, segment.data, [&](const auto* tokens) {
    return static_cast<int64_t>(tokens[position]);
  });
  user_error(
      "{}: token {} at byte offset {} is beyond the vocabulary: expected 0 to {}; set "
      "vocab_size",
      files_[segment.file].string(), token,
      segment.file_offset + position * token_bytes(segment.type), vocab_size_ - 1);
}

}  // namespace tessera::data
