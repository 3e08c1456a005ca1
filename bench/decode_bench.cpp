// How fast a model makes text, beside what the machine allows, in one process: a token after the
// other beside reading the weights once from memory, a prompt beside training's forward.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/report.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/generate/cached_model.h"
#include "tessera/generate/generate.h"
#include "tessera/kernels/cpu/memory.h"
#include "tessera/kernels/cpu/parallel.h"
#include "tessera/nn/allocate.h"

namespace tessera::bench {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::string> models{"small", "llama-3.2-1b"};
  std::vector<std::string> dtypes{"fp32", "bf16"};
  int64_t prompt = 512, tokens = 48;
  int runs = 5;
  std::string out = "build/decode.json";
};

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Bytes a second that all threads together read from memory: the best of a few passes.
double read_bandwidth() {
  constexpr int64_t kWords = int64_t{1} << 26;  // 512 MiB
  const auto memory = torch::ones({kWords}, torch::kInt64);
  const auto* words = memory.const_data_ptr<int64_t>();
  std::vector<int64_t> sums(static_cast<size_t>(at::get_num_threads()) + 1);
  double best = 0;
  for (int pass = 0; pass < 7; ++pass) {
    const double seconds = seconds_of([&] {
      const int64_t threads = at::get_num_threads();
      kernels::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
        for (int64_t thread = first; thread < last; ++thread) {
          int64_t sum = 0;
          for (int64_t i = kWords * thread / threads; i < kWords * (thread + 1) / threads; ++i) {
            sum += words[i];
          }
          sums[static_cast<size_t>(thread)] = sum;
        }
      });
    });
    best = std::max(best, static_cast<double>(kWords * 8) / seconds);
  }
  TORCH_INTERNAL_ASSERT(sums[0] > 0);
  return best;
}

std::shared_ptr<models::LanguageModel> make_model(const std::string& preset, torch::Dtype dtype) {
  auto model = models::make_language_model(models::model_preset(preset),
                                           torch::dtype(dtype).device(torch::kMeta));
  nn::allocate_parameters(*model, torch::kCPU);
  const torch::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    const auto first = model->initial(item.key(), item.value().dim(), 0.02);
    first.constant ? item.value().fill_(first.value) : item.value().normal_(0, first.value);
  }
  model->eval();
  return model;
}

/// What is read for a token: every parameter, but one row alone of embeddings that are no head.
int64_t bytes_read(const models::LanguageModel& model) {
  int64_t bytes = 0;
  for (const auto& item : model.named_parameters()) {
    const bool rows = item.key().find("embed_tokens") != std::string::npos ||
                      item.key().find("wpe") != std::string::npos;
    if (!rows || model.shape().tie_embeddings) bytes += static_cast<int64_t>(item.value().nbytes());
  }
  return bytes;
}

std::vector<int64_t> random_tokens(const models::ModelShape& shape, int64_t count) {
  const auto ids = torch::randint(shape.vocab_size, {count});
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + count};
}

/// The median of `count` tokens behind `text`, which the cache has.
double seconds_a_token(generate::CachedModel& cached, const std::vector<int64_t>& text,
                       int64_t count) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  auto before = Clock::now();
  generate::generate(
      [&](auto tokens) { return cached(tokens); }, text,
      {.max_new_tokens = count, .sampling = {.temperature = 0}, .on_token = [&](int64_t) {
         const auto now = Clock::now();
         seconds.push_back(std::chrono::duration<double>(now - before).count());
         before = now;
         return true;
       }});
  return median(seconds);
}

json measure(const Options& options, const std::string& preset, const std::string& dtype) {
  const auto model = make_model(preset, dtype == "bf16" ? torch::kBFloat16 : torch::kFloat);
  const auto& shape = model->shape();
  const int64_t length = std::min(options.prompt, shape.max_seq_len - options.tokens);
  const auto prompt = random_tokens(shape, length);
  const auto ids = torch::tensor(prompt).unsqueeze(0);
  std::vector<double> bandwidth, decode, prefill, forward;
  for (int run = 0; run < options.runs + 1; ++run) {  // the first does what is done once
    bandwidth.push_back(read_bandwidth());
    forward.push_back(seconds_of([&] { model->loss(ids, ids, 1.0 / double(length)); }));
    generate::CachedModel cached(*model);
    prefill.push_back(seconds_of([&] { cached(prompt); }));
    decode.push_back(seconds_a_token(cached, prompt, options.tokens));
  }
  for (auto* times : {&bandwidth, &decode, &prefill, &forward}) times->erase(times->begin());
  const double limit = median(bandwidth) / static_cast<double>(bytes_read(*model));
  return {{"model", preset},
          {"dtype", dtype},
          {"weights_bytes_read", bytes_read(*model)},
          {"bandwidth_bytes_per_second", median(bandwidth)},
          {"decode_tokens_per_second", 1 / median(decode)},
          {"decode_share_of_limit", 1 / median(decode) / limit},
          {"prompt_tokens", length},
          {"prompt_tokens_per_second", double(length) / median(prefill)},
          {"training_forward_tokens_per_second", double(length) / median(forward)},
          {"prompt_share_of_forward", median(forward) / median(prefill)},
          {"runs",
           {{"bandwidth", bandwidth},
            {"decode_seconds", decode},
            {"prompt_seconds", prefill},
            {"forward_seconds", forward}}}};
}

void run(const Options& options) {
  fmt::print(
      "| model | dtype | memory GB/s | tokens/s | of the limit | prompt tokens/s | of training's "
      "forward |\n|---|---|---|---|---|---|---|\n");
  json rows = json::array();
  for (const auto& preset : options.models) {
    for (const auto& dtype : options.dtypes) {
      const auto row = rows.emplace_back(measure(options, preset, dtype));
      fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.0f} % | {:.0f} | {:.0f} % |\n", preset, dtype,
                 row["bandwidth_bytes_per_second"].get<double>() / 1e9,
                 row["decode_tokens_per_second"].get<double>(),
                 100 * row["decode_share_of_limit"].get<double>(),
                 row["prompt_tokens_per_second"].get<double>(),
                 100 * row["prompt_share_of_forward"].get<double>());
      std::fflush(stdout);
    }
  }
  write_file(
      options.out,
      json{{"machine", machine()}, {"threads", at::get_num_threads()}, {"rows", rows}}.dump(1) +
          "\n");
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::bench::Options options;
  CLI::App app("Tokens a second of text made and of prompts read; medians");
  app.add_option("--models", options.models, "Presets");
  app.add_option("--dtypes", options.dtypes, "fp32, bf16");
  app.add_option("--prompt", options.prompt, "Tokens of the prompt");
  app.add_option("--tokens", options.tokens, "Tokens made in each run");
  app.add_option("--runs", options.runs, "Of each, behind one that is not counted");
  app.add_option("--out", options.out, "JSON file");
  CLI11_PARSE(app, argc, argv);
  try {
    tessera::kernels::install_caching_allocator();  // as the command does
    tessera::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera_decode_bench: {}\n", error.what());
    return tessera::kFailureExit;
  }
}
