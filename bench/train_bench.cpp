// Whole training runs of `tessera train` on two ranks of this machine, beside PyTorch's DDP where
// it is installed: tokens/s, peak memory per rank, and the time from launch to the end of the first
// step. The contestants take turns, run by run, on the same tokens, weights and job; the table and
// the JSON file give medians.
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> sizes{"tiny", "small"};
  int runs = 5;
  std::string python = "python3";
  std::string peers;  ///< folder of train_ddp.py
  std::string out = "build/bench.json";
};

struct Shape {
  int seq_len, global_batch, steps;
};
const std::map<std::string, Shape> kShapes{{"tiny", {256, 8, 30}}, {"small", {512, 4, 8}}};

struct Result {
  double tokens_per_second = 0, peak_memory_mb = 0, first_step_seconds = 0, last_loss = 0;
  double matmul_peak = 0, mfu = 0;  ///< unknown (0) for peers
};

/// What a command prints to stdout; throws SystemError with `what` if it fails.
std::string output_of(const std::string& command, const std::string& what) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) system_error(what);
  std::string text;
  std::array<char, 4096> chunk;
  while (const size_t n = std::fread(chunk.data(), 1, chunk.size(), pipe.get()))
    text.append(chunk.data(), n);
  return text;
}

/// As a word of a shell command.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    folder_ = fs::temp_directory_path() / fmt::format("tessera_bench_{}", ::getpid());
    fs::create_directories(folder_);
    bin_ = fs::read_symlink("/proc/self/exe").parent_path();
    make_tokens();
  }
  ~Bench() { fs::remove_all(folder_); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// One run of a contestant: "tessera", "tessera-vendor" (MKL's own choice of instructions) or
  /// "ddp".
  Result run(const std::string& contestant, const std::string& size) const {
    return contestant == "ddp" ? run_ddp(size) : run_tessera(size, contestant == "tessera-vendor");
  }

  bool has_ddp() const {
    if (options_.peers.empty() || !fs::exists(fs::path(options_.peers) / "train_ddp.py"))
      return false;
    return std::system(
               (quoted(options_.python) + " -c 'import torch, numpy' 2>/dev/null").c_str()) == 0;
  }

 private:
  // The system's licence texts, one uint16 a byte: 250 kB that every Debian has.
  void make_tokens() {
    std::string files;
    for (const auto& entry : fs::directory_iterator("/usr/share/common-licenses")) {
      if (entry.is_regular_file() && !entry.is_symlink()) files += " " + quoted(entry.path());
    }
    tokens_ = folder_ / "tokens.bin";
    output_of(fmt::format("{} tokenize{} --out {} --dtype uint16", quoted(bin_ / "tessera"), files,
                          quoted(tokens_)),
              "tessera tokenize");
    if (!fs::exists(tokens_))
      user_error("tessera tokenize failed: expected texts in /usr/share/common-licenses");
  }

  Result run_tessera(const std::string& size, bool vendor_check) const {
    const auto& shape = kShapes.at(size);
    const auto job = folder_ / "job.yaml", run_dir = folder_ / "run";
    write_file(job, fmt::format(R"(model: {{preset: {}}}
data: {{train: [{}], format: tokens, token_dtype: uint16, validation_fraction: 0, seq_len: {}, shuffle: false}}
optimizer: {{decay_norms_and_biases: true}}
schedule: {{type: constant}}
parallel: {{num_ranks: 2, threads_per_rank: 1}}
train: {{steps: {}, global_batch: {}, run_dir: {}, sample_tokens: 0}}
logging: {{tensorboard: false, svg: false, progress: none}}
)",
                                size, tokens_.string(), shape.seq_len, shape.steps,
                                shape.global_batch, run_dir.string()));
    fs::remove_all(run_dir);
    output_of(fmt::format("{} {} train {}", vendor_check ? "TESSERA_MKL_VENDOR_CHECK=1" : "",
                          quoted(bin_ / "tessera"), quoted(job)),
              "tessera train");
    const auto summary = json::parse(read_file(run_dir / "summary.json"));
    double peak = 0;
    for (const auto& bytes : summary["peak_memory_bytes"])
      peak = std::max(peak, bytes.get<double>() / 1048576);
    return {.tokens_per_second = summary["tokens_per_second"],
            .peak_memory_mb = peak,
            .first_step_seconds = summary["seconds_to_first_step"],
            .last_loss = summary["last_loss"],
            .matmul_peak = summary["matmul_peak_flops"],
            .mfu = summary["mfu"]};
  }

  Result run_ddp(const std::string& size) const {
    const auto text =
        output_of(fmt::format("cd {} && BENCH_T0=$(date +%s.%N) BENCH_DATA={} OMP_NUM_THREADS=1 {} "
                              "-m torch.distributed.run "
                              "--nproc_per_node=2 train_ddp.py --size {} --steps {} 2>/dev/null",
                              quoted(options_.peers), quoted(tokens_), quoted(options_.python),
                              size, kShapes.at(size).steps),
                  "train_ddp.py");
    const auto begin = text.find("{\"event\": \"summary\"");
    if (begin == std::string::npos)
      user_error("{}/train_ddp.py: expected a summary line; run it by hand", options_.peers);
    const auto summary = json::parse(text.substr(begin, text.find('\n', begin) - begin));
    double peak = 0;
    for (const auto& mb : summary["vm_hwm_mb"]) peak = std::max(peak, mb.get<double>());
    return {.tokens_per_second = summary["tokens_per_s"],
            .peak_memory_mb = peak,
            .first_step_seconds = summary["launch_to_first_step_s"],
            .last_loss = summary["last_loss"]};
  }

  Options options_;
  fs::path folder_, bin_, tokens_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median(const std::vector<Result>& results, double Result::*member) {
  std::vector<double> values;
  for (const auto& result : results) values.push_back(result.*member);
  return median(values);
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

json machine() {
  utsname name{};
  ::uname(&name);
  const std::string commit = output_of(
      "git -C " + quoted(TESSERA_SOURCE_DIR) + " rev-parse --short HEAD 2>/dev/null", "git");
  return {{"processor", processor()},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"kernel", name.release},
          {"commit", commit.substr(0, commit.find('\n'))}};
}

json to_json(const std::vector<Result>& results) {
  json runs = json::array();
  for (const auto& result : results) {
    runs.push_back({{"tokens_per_second", result.tokens_per_second},
                    {"peak_memory_mb", result.peak_memory_mb},
                    {"first_step_seconds", result.first_step_seconds},
                    {"last_loss", result.last_loss},
                    {"matmul_peak_flops", result.matmul_peak},
                    {"mfu", result.mfu}});
  }
  return runs;
}

void print_row(const std::string& size, const std::string& contestant,
               const std::vector<Result>& results, const std::vector<Result>* ddp) {
  const auto cell = [&](double Result::*member, int digits) {
    const double value = median(results, member);
    const auto ratio = ddp ? fmt::format(" ({:.2f} x)", value / median(*ddp, member)) : "";
    return fmt::format("{:.{}f}{}", value, digits, ratio);
  };
  const double peak = median(results, &Result::matmul_peak);
  const auto share = peak > 0 ? fmt::format("{:.0f} % of {:.0f} GFLOP/s",
                                            100 * median(results, &Result::mfu), peak / 1e9)
                              : "-";
  fmt::print("{:<6} {:<15} {:>18} {:>18} {:>16} {:>22} {:>10.4f}\n", size, contestant,
             cell(&Result::tokens_per_second, 0), cell(&Result::peak_memory_mb, 0),
             cell(&Result::first_step_seconds, 2), share, median(results, &Result::last_loss));
  std::fflush(stdout);
}

void run_all(const Options& options) {
  const Bench bench(options);
  std::vector<std::string> contestants{"tessera", "tessera-vendor"};
  if (bench.has_ddp()) {
    contestants.insert(contestants.begin(), "ddp");
  } else {
    fmt::print(
        "no PyTorch DDP to compare with: set --peers to the folder of train_ddp.py and --python to "
        "one with torch\n");
  }
  fmt::print(
      "two ranks, one thread each, fp32; medians of {} runs that took turns; (x): relative to ddp\n"
      "tessera-vendor: MKL's own choice of instructions, as in PyTorch "
      "(TESSERA_MKL_VENDOR_CHECK=1)\n\n"
      "{:<6} {:<15} {:>18} {:>18} {:>16} {:>22} {:>10}\n",
      options.runs, "size", "run", "tokens/s", "MiB per rank", "first step s", "matmul limit",
      "last loss");
  json report{{"machine", machine()}, {"runs", options.runs}, {"unix_time", std::time(nullptr)}};
  for (const auto& size : options.sizes) {
    std::map<std::string, std::vector<Result>> results;
    for (int i = 0; i < options.runs; ++i) {
      for (const auto& contestant : contestants)
        results[contestant].push_back(bench.run(contestant, size));
    }
    for (const auto& contestant : contestants) {
      print_row(size, contestant, results[contestant],
                results.contains("ddp") ? &results["ddp"] : nullptr);
      report["sizes"][size][contestant] = to_json(results[contestant]);
    }
  }
  if (const auto parent = fs::path(options.out).parent_path(); !parent.empty())
    fs::create_directories(parent);
  write_file(options.out, report.dump(1) + "\n");
  fmt::print("\nwritten to {}\n", options.out);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  Options options;
  if (fs::exists("../shared/peers/train_ddp.py")) options.peers = "../shared/peers";
  CLI::App app("Training beside PyTorch DDP on two ranks of this machine", "tessera_bench");
  app.add_option("--sizes", options.sizes, "tiny, small")
      ->check(CLI::IsMember({"tiny", "small"}))
      ->capture_default_str();
  app.add_option("--runs", options.runs, "Runs of each; the table gives medians")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--python", options.python, "Python with torch, for the peer")
      ->capture_default_str();
  app.add_option("--peers", options.peers, "Folder of train_ddp.py");
  app.add_option("--out", options.out, "JSON file with every run")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run_all(options);
  } catch (const UserError& error) {
    std::fprintf(stderr, "tessera_bench: %s\n", error.what());
    return kUserErrorExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera_bench: %s\n", error.what());
    return kFailureExit;
  }
  return 0;
}
