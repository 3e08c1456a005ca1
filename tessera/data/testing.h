// Files made of numbers, what is read from them, and the text of a refusal, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/token_source.h"

namespace tessera::data::testing {

/// The bytes of numbers of type T, one after the other.
template <typename T>
std::string bytes_of(const std::vector<int64_t>& numbers) {
  const std::vector<T> typed(numbers.begin(), numbers.end());
  return {reinterpret_cast<const char*>(typed.data()), typed.size() * sizeof(T)};
}

/// 256 int32: an llm.c header.
inline std::string llmc_header(int64_t magic, int64_t version, int64_t num_tokens) {
  std::vector<int64_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = num_tokens;
  return bytes_of<int32_t>(header);
}

/// The line of the UserError that `function` throws; a text that no test expects if it throws none.
template <typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const UserError& error) {
    const std::string line = error.what();
    return line.find('\n') == std::string::npos ? line : "(more than one line) " + line;
  }
  return "(accepted)";
}

/// All tokens of a source.
inline std::vector<int64_t> tokens_of(const TokenSourceOptions& options) {
  const auto source = TokenSource::open(options);
  std::vector<int64_t> tokens(static_cast<size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

}  // namespace tessera::data::testing
