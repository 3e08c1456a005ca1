#include "tessera/data/tokenize.h"

#include <array>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/data/text_files.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

struct Text {
  fs::path path;
  int64_t num_bytes = 0;
};

/// The texts that hold anything, in the order of the sequence.
std::vector<Text> list_inputs(const TokenizeOptions& options) {
  std::vector<Text> texts;
  for (const fs::path input : options.inputs) {
    for (const auto& path : list_text(input, options.extensions)) {
      std::error_code error;
      if (fs::equivalent(path, options.out, error)) {
        user_error("{}: is itself one of the inputs; choose another --out, or --extensions",
                   options.out.string());
      }
      const auto size = fs::file_size(path, error);
      if (error) user_error("{}: cannot be read: {}", path.string(), error.message());
      if (size > 0) texts.push_back({path, static_cast<int64_t>(size)});
    }
  }
  if (texts.empty()) user_error("tokenize: expected text, got no input or nothing but empty files");
  return texts;
}

void check_output(const fs::path& out) {
  const auto folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    user_error("{}: its folder does not exist; create it first", out.string());
  if (fs::is_directory(out)) user_error("{}: expected a file to write, got a folder", out.string());
}

void copy_text(const fs::path& path, TokenWriter& writer) {
  std::ifstream file(path, std::ios::binary);
  if (!file) user_error("{}: cannot be opened", path.string());
  std::vector<uint8_t> bytes(size_t{1} << 20);
  while (file) {
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    writer.append(std::span<const uint8_t>(bytes.data(), static_cast<size_t>(file.gcount())));
  }
}

}  // namespace

TokenizeResult tokenize_bytes(const TokenizeOptions& options) {
  check_output(options.out);
  const auto texts = list_inputs(options);
  TokenizeResult result{.num_files = static_cast<int64_t>(texts.size()), .num_tokens = -1};
  for (const auto& text : texts)
    result.num_tokens += text.num_bytes + 1;  // a byte 0 between two texts

  TokenWriter writer(
      options.out,
      {.type = options.type, .header = options.header, .num_tokens = result.num_tokens});
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) writer.append(std::array<uint8_t, 1>{0});
    copy_text(texts[i].path, writer);
  }
  writer.commit();
  return result;
}

}  // namespace tessera::data
