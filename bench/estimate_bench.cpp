// What `tessera estimate-memory` predicts of a rank's peak, beside what runs of `tessera train`
// measure: every placement, one and two ranks, every checkpointing, fp32 and bf16, two shapes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/report.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// `tiny` has 256 wide hidden states and few layers: its logits weigh; `mid` is wider and deeper.
struct Shape {
  const char* name;
  const char* model;
  int seq_len, global_batch;
};
const Shape kShapes[] = {
    {"tiny", "{preset: tiny}", 256, 8},
    {"mid",
     "{preset: small, vocab_size: 8192, dim: 384, num_layers: 6, num_heads: 6, ffn_dim: 1024}", 128,
     4}};

struct Case {
  const Shape* shape;
  std::string placement, checkpointing, compute;
  int ranks = 1;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& shape : kShapes) {
    for (const auto* placement :
         {"replicate", "shard_optimizer", "shard_gradients", "full_shard"}) {
      for (const auto* checkpointing : {"none", "selective", "full"}) {
        for (const auto* compute : {"fp32", "bf16"}) {
          for (const int ranks : {1, 2})
            cases.push_back({&shape, placement, checkpointing, compute, ranks});
        }
      }
    }
  }
  return cases;
}

struct Options {
  fs::path tessera, folder, tokens, out;
};

/// A job of two steps: a later one needs no more memory, as the optimizer's state is there.
std::string job_text(const Case& run, const Options& options) {
  return fmt::format(R"(model: {}
data: {{train: ["{}"], validation_fraction: 0, seq_len: {}}}
parallel: {{num_ranks: {}, threads_per_rank: 1, placement: {}}}
precision: {{compute: {}}}
memory: {{checkpointing: {}}}
train: {{steps: 2, global_batch: {}, run_dir: "{}", sample_tokens: 0}}
checkpoint: {{at_end: false}}
logging: {{tensorboard: false, svg: false, progress: none}}
)",
                     run.shape->model, options.tokens.string(), run.shape->seq_len, run.ranks,
                     run.placement, run.compute, run.checkpointing, run.shape->global_batch,
                     (options.folder / "run").string());
}

json measure(const Case& run, const Options& options) {
  const auto job = options.folder / "job.yaml";
  write_file(job, job_text(run, options));
  fs::remove_all(options.folder / "run");
  const auto program = quoted(options.tessera.string());
  const auto estimate = json::parse(
      output_of(fmt::format("{} estimate-memory --job {} --json", program, quoted(job.string()))));
  output_of(fmt::format("{} train {}", program, quoted(job.string())));
  const auto summary = json::parse(read_file(options.folder / "run" / "summary.json"));
  const int64_t predicted = estimate["rank"]["peak_bytes"];
  const int64_t measured = summary["memory"]["at once"]["measured"];
  return {{"shape", run.shape->name},
          {"placement", run.placement},
          {"ranks", run.ranks},
          {"checkpointing", run.checkpointing},
          {"precision", run.compute},
          {"peak_phase", estimate["rank"]["peak_phase"]},
          {"predicted_bytes", predicted},
          {"measured_bytes", measured},
          {"error", static_cast<double>(predicted) / static_cast<double>(measured) - 1}};
}

int run(const Options& options) {
  fs::create_directories(options.folder);
  fmt::print(
      "| shape | placement | ranks | checkpointing | precision | peak in | predicted | "
      "measured | error |\n|---|---|---|---|---|---|---|---|---|\n");
  json rows = json::array();
  std::vector<double> errors;
  for (const auto& each : all_cases()) {
    const auto row = measure(each, options);
    const double error = row["error"];
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {:+.1f} % |\n", each.shape->name,
               each.placement, each.ranks, each.checkpointing, each.compute,
               row["peak_phase"].get<std::string>(), format_bytes(row["predicted_bytes"]),
               format_bytes(row["measured_bytes"]), 100 * error);
    std::fflush(stdout);
    rows.push_back(row);
    errors.push_back(std::abs(error));
  }
  const double middle = median(errors), worst = std::ranges::max(errors);
  fmt::print("{} runs: error {:.2f} % in the median, {:.2f} % at the worst\n", errors.size(),
             100 * middle, 100 * worst);
  write_file(
      options.out,
      json{{"machine", machine()}, {"median_error", middle}, {"worst_error", worst}, {"runs", rows}}
              .dump(1) +
          "\n");
  return middle <= 0.10 && worst <= 0.15 ? 0 : kFailureExit;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  tessera::bench::Options options{
      .tessera = fs::read_symlink("/proc/self/exe").parent_path() / "tessera",
      .folder = fs::temp_directory_path() / "tessera_estimate_bench",
      .tokens = fs::path(TESSERA_SOURCE_DIR) / "tests/fixtures/tokens_head.bin",
      .out = "build/estimate.json"};
  CLI::App app("Predicted and measured peaks of ranks; exit code 1 beyond 10 % (median) or 15 %");
  app.add_option("--tessera", options.tessera, "The program; the one beside this unless given");
  app.add_option("--folder", options.folder, "For the runs");
  app.add_option("--out", options.out, "JSON file");
  CLI11_PARSE(app, argc, argv);
  try {
    return tessera::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera_estimate_bench: {}\n", error.what());
    return tessera::kFailureExit;
  }
}
