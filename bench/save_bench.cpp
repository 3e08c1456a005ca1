// Checkpoints of two ranks of this machine: saved and loaded by us, by PyTorch's DCP where it is
// installed, and beside what `dd` does with as many bytes on the same disk. All take turns, run by
// run; the table gives medians, the JSON file every run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/report.h"
#include "bench/save_bench_rank.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  double size_gb = 2;
  int runs = 5;
  std::string folder = "build/save_bench";
  std::string source_folder = "/dev/shm";
  std::string dcp_python;
  std::string out = "build/save_bench.json";
  RankJob rank_job;  ///< set in the ranks that we start
};

/// Seconds of every run, by what was measured, in the order of the first run.
class Measured {
 public:
  void add(const std::string& name, double seconds) {
    if (!seconds_.contains(name)) order_.push_back(name);
    seconds_[name].push_back(seconds);
  }

  std::string table(int64_t num_bytes) const {
    auto text = fmt::format("{:<34} {:>9} {:>7}\n", "", "seconds", "GB/s");
    for (const auto& name : order_) {
      const double seconds = median(seconds_.at(name));
      text += fmt::format("{:<34} {:>9.3f} {:>7.2f}\n", name, seconds,
                          static_cast<double>(num_bytes) / 1e9 / seconds);
    }
    return text;
  }

  json to_json() const { return seconds_; }

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::vector<double>> seconds_;
};

/// All measurements, in a folder that goes with it.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        num_bytes_(static_cast<int64_t>(options.size_gb * 1e9) / kPart * kPart),
        folder_(fs::absolute(options.folder) / fmt::format("run_{}", ::getpid())),
        source_(fs::path(options.source_folder) / fmt::format("tessera_bench_{}", ::getpid())),
        bin_(fs::read_symlink("/proc/self/exe").parent_path()) {
    fs::create_directories(folder_);
    // No zeros: a disk below a virtual machine may pack them.
    shell(fmt::format("dd if=/dev/urandom of={} {}", quoted(source_), blocks()));
  }
  ~Bench() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    fs::remove(source_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void run_once(Measured& measured) {
    dd_writes(measured);
    for (const std::string verify : {"off", "sizes", "full"}) {
      measured.add("save, verify " + verify, save({.verify = verify})["seconds"]);
    }
    const auto async = save({.async = true, .verify = "off"});
    measured.add("save async: stall", async["stall_seconds"]);
    measured.add("  plain copy of the same", async["copy_seconds"]);
    measured.add("  until complete", async["seconds"]);
    for (const int ranks : {2, 1, 3}) {
      measured.add(fmt::format("load by {}", ranks), load(ranks));
    }
    for (const int writers : {1, 3}) {
      save({.verify = "off"}, writers);
      measured.add(fmt::format("load by 2, written by {}", writers), load(2));
    }
    dd_reads(measured);
    if (!options_.dcp_python.empty()) dcp(measured);
  }

  int64_t num_bytes() const { return num_bytes_; }

 private:
  static constexpr int64_t kPart = 8 << 20;

  std::string blocks() const { return fmt::format("bs={} count={}", kPart, num_bytes_ / kPart); }
  fs::path dd_file() const { return folder_ / "dd"; }

  static std::string shell(const std::string& command) {
    auto printed = output_of(command + " 2>&1 || echo FAILED");
    if (printed.ends_with("FAILED\n")) throw SystemError(command + ": " + printed);
    return printed;
  }

  double seconds_of(const std::string& command) const {
    const auto start = std::chrono::steady_clock::now();
    shell(command);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void dd_writes(Measured& measured) const {
    for (const std::string flags : {"conv=fsync", "oflag=direct conv=fsync"}) {
      fs::remove(dd_file());
      measured.add("dd " + flags, seconds_of(fmt::format("dd if={} of={} {} {}", quoted(source_),
                                                         quoted(dd_file()), blocks(), flags)));
    }
  }

  void dd_reads(Measured& measured) const {
    const auto read = [&](const std::string& flags) {
      return seconds_of(
          fmt::format("dd if={} of=/dev/null {} {}", quoted(dd_file()), blocks(), flags));
    };
    measured.add("dd iflag=direct", read("iflag=direct"));
    read("");
    measured.add("dd, file in the page cache", read(""));
  }

  json on_ranks(int ranks, const RankJob& job) const {
    const auto printed = shell(fmt::format(
        "OMP_NUM_THREADS=1 {} launch -n {} --no-prefix {} --rank-action {} --rank-folder {} "
        "--rank-bytes {} --rank-verify {}{}",
        quoted(bin_ / "tessera"), ranks, quoted(bin_ / "tessera_save_bench"), job.action,
        quoted(job.folder), job.num_bytes, job.verify, job.async ? " --rank-async" : ""));
    const auto brace = printed.find('{');
    if (brace == std::string::npos) throw SystemError("no result: " + printed);
    return json::parse(printed.substr(brace, printed.find('}') + 1 - brace));
  }

  json save(RankJob job, int ranks = 2) const {
    fs::remove_all(folder_ / "ours");
    job.action = "save";
    job.folder = folder_ / "ours";
    job.num_bytes = num_bytes_;
    return on_ranks(ranks, job);
  }

  double load(int ranks) const {
    const auto stored = (folder_ / "ours/step_00000001").string();
    return on_ranks(ranks,
                    {.action = "load", .folder = stored, .num_bytes = num_bytes_})["seconds"];
  }

  void dcp(Measured& measured) const {
    const auto printed = shell(fmt::format(
        "OMP_NUM_THREADS=1 {} -m torch.distributed.run --nproc_per_node=2 {}/bench/peers/dcp.py {} "
        "{}",
        quoted(options_.dcp_python), quoted(TESSERA_SOURCE_DIR), quoted(folder_ / "dcp"),
        num_bytes_));
    const auto brace = printed.find("{\"seconds\"");
    if (brace == std::string::npos) throw SystemError("dcp.py: " + printed);
    const auto seconds = json::parse(printed.substr(brace))["seconds"];
    measured.add("DCP save", seconds["save"]);
    measured.add("DCP async_save: stall", seconds["async_stall"]);
    measured.add("DCP load, files in the page cache", seconds["load"]);
    measured.add("DCP load", seconds["load_cold"]);
  }

  Options options_;
  int64_t num_bytes_;
  fs::path folder_, source_, bin_;
};

int run_all(const Options& options) {
  Bench bench(options);
  Measured measured;
  for (int i = 0; i < options.runs; ++i) {
    bench.run_once(measured);
    const json report{{"machine", machine()},
                      {"runs", i + 1},
                      {"unix_time", std::time(nullptr)},
                      {"bytes", bench.num_bytes()},
                      {"seconds", measured.to_json()}};
    fs::create_directories(fs::absolute(options.out).parent_path());
    write_file(options.out, report.dump(1) + "\n");  // what is done stays if the rest is ended
  }
  fmt::print("{:.2f} GB; two ranks, one thread each; medians of {} runs that took turns\n\n{}\n",
             static_cast<double>(bench.num_bytes()) / 1e9, options.runs,
             measured.table(bench.num_bytes()));
  fmt::print("written to {}\n", options.out);
  return 0;
}

int run_as_rank(const RankJob& job) {
  fmt::print("{}\n", run_rank(job).dump());  // the launcher shows rank 0's
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  CLI::App app("Checkpoints of two ranks of this machine, beside dd and PyTorch's DCP",
               "tessera_save_bench");
  app.add_option("--size-gb", options.size_gb, "Size of the state, 10^9 bytes")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  app.add_option("--runs", options.runs, "Runs of each; the table gives medians")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--dir", options.folder, "On the disk to be measured")->capture_default_str();
  app.add_option("--source-dir", options.source_folder, "Where the bytes that dd writes come from")
      ->capture_default_str();
  app.add_option("--dcp-python", options.dcp_python, "Python with PyTorch; unset: no DCP");
  app.add_option("--out", options.out, "JSON file with every run")->capture_default_str();
  auto& job = options.rank_job;
  app.add_option("--rank-action", job.action)->group("");
  app.add_option("--rank-folder", job.folder)->group("");
  app.add_option("--rank-bytes", job.num_bytes)->group("");
  app.add_option("--rank-verify", job.verify)->group("");
  app.add_flag("--rank-async", job.async)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    return job.action.empty() ? run_all(options) : run_as_rank(job);
  } catch (const tessera::UserError& error) {
    std::fprintf(stderr, "tessera_save_bench: %s\n", error.what());
    return tessera::kUserErrorExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera_save_bench: %s\n", error.what());
    return tessera::kFailureExit;
  }
}
