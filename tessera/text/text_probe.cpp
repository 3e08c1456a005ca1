// For tests/integration/tokenizer_peers.py: encodes and decodes what stands in JSON lines on standard input.
//
//   tessera_text_probe TOKENIZER < lines
//
// {"text": .., "add_special_tokens": ..} becomes {"ids": .., "offsets": .., "decoded": .., "skipped": ..}, where all that an
// Encoder and a StreamDecoder make must be the same; {"ids": ..} becomes {"decoded": .., "skipped": ..}. "bytes", in hexadecimal
// digits, stand for a text that is no UTF-8.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {
namespace {

using nlohmann::json;

std::string bytes_of_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

json answer(const Tokenizer& tokenizer, Encoder& encoder, const json& line) {
  json result;
  std::vector<uint32_t> ids;
  if (line.contains("text")) {
    const auto text = line.contains("bytes") ? bytes_of_hex(line["bytes"].get<std::string>())
                                             : line["text"].get<std::string>();
    const EncodeOptions options{.add_special_tokens = line.value("add_special_tokens", true)};
    const auto encoding = tokenizer.encode(text, options);
    ids = encoding.ids;
    result["ids"] = ids;
    for (const auto& each : encoding.offsets) result["offsets"].push_back({each.begin, each.end});
    std::vector<uint32_t> quick;
    encoder.append(text, quick, options);
    if (quick != ids) result["encoder"] = quick;
  } else {
    ids = line["ids"].get<std::vector<uint32_t>>();
  }
  result["decoded"] = tokenizer.decode(ids);
  result["skipped"] = tokenizer.decode(ids, true);
  StreamDecoder stream(tokenizer);
  std::string streamed;
  if (ids.size() < 2000) {
    for (const auto id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    if (streamed != result["decoded"]) result["streamed"] = streamed;
  }
  return result;
}

}  // namespace
}  // namespace tessera::text

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: tessera_text_probe TOKENIZER < lines\n");
    return tessera::kUserErrorExit;
  }
  try {
    const auto tokenizer = tessera::text::load_tokenizer(argv[1]);
    tessera::text::Encoder encoder(tokenizer);
    std::ios::sync_with_stdio(false);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << tessera::text::answer(tokenizer, encoder, nlohmann::json::parse(line)).dump()
                << "\n";
    }
  } catch (const tessera::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return tessera::kUserErrorExit;
  }
  return 0;
}
