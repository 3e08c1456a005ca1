// How fast text becomes tokens: bench/peers/tokenizer_speed.py runs it beside other libraries.
//
//   tessera_tokenizer_bench TOKENIZER TEXT THREADS
//
// Prints the tokens of TEXT and the seconds that all of it took, without reading the files; then CPU seconds.
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/text/tokenizer.h"

namespace {

/// Texts of some 10 kB each, cut at ends of lines.
std::vector<std::string_view> texts_of(std::string_view all) {
  std::vector<std::string_view> texts;
  while (!all.empty()) {
    size_t end = all.size() < 10000 ? all.npos : all.find('\n', 10000);
    end = end == all.npos ? all.size() : end + 1;
    texts.push_back(all.substr(0, end));
    all.remove_prefix(end);
  }
  return texts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: tessera_tokenizer_bench TOKENIZER TEXT THREADS\n");
    return tessera::kUserErrorExit;
  }
  const auto tokenizer = tessera::text::load_tokenizer(argv[1]);
  const tessera::MappedFile file(argv[2]);
  const auto texts = texts_of(file.text());
  const size_t num_threads = std::stoul(argv[3]);
  const auto cpu_start = std::clock();
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::vector<uint32_t>> encoded(texts.size());  // kept, as the other libraries do
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      tessera::text::Encoder encoder(tokenizer);
      for (size_t i = thread; i < texts.size(); i += num_threads)
        encoder.append(texts[i], encoded[i], {.add_special_tokens = false});
    });
  }
  threads.clear();  // waits
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  size_t num_tokens = 0;
  for (const auto& ids : encoded) num_tokens += ids.size();
  fmt::print("{} {} {}\n", num_tokens, seconds.count(), cpu_seconds);
  return 0;
}
