// Whole training runs of `tessera train` on ranks of this machine, beside PyTorch's DDP, FSDP2,
// tensor and pipeline parallelism, Accelerate and DeepSpeed where they are installed: tokens/s,
// peak memory per rank, and the time from launch to the end of the first step. The contestants take
// turns, run by run, on the same tokens, weights and job; the table gives medians, the JSON file
// every run. --bytes: instead, what the operators of one rank's step pass over.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/report.h"
#include "bench/step_bytes.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> sizes{"tiny", "small"};
  std::vector<std::string> dtypes{"fp32", "bf16"};
  int num_ranks = 2, threads = 1;
  std::vector<std::string> contestants;
  int runs = 5;
  bool bytes = false;
  RunnerOptions runner;
  std::string out = "build/bench.json";
};

// The contestants that need so many ranks, or else those that take any number; but those with MKL's
// own choice of instructions, which only the curious need.
std::vector<std::string> usual_contestants(int num_ranks) {
  const auto needs = [&](const Contestant& contestant) {
    return contestant.num_ranks == num_ranks;
  };
  const int wanted = std::ranges::any_of(contestants(), needs) ? num_ranks : 0;
  std::vector<std::string> names;
  for (const auto& contestant : contestants()) {
    if (contestant.num_ranks == wanted && !contestant.name.ends_with("_vendor"))
      names.push_back(contestant.name);
  }
  return names;
}

std::vector<Contestant> present(const Runner& runner, const std::vector<std::string>& names) {
  std::vector<Contestant> result;
  for (const auto& name : std::set<std::string>(names.begin(), names.end()))
    contestant_named(name);  // a mistyped name ends the benchmark here
  for (const auto& contestant : contestants()) {
    if (std::find(names.begin(), names.end(), contestant.name) == names.end()) continue;
    const auto why_not = runner.why_not(contestant);
    if (why_not.empty()) {
      result.push_back(contestant);
    } else {
      fmt::print("{} skipped: {}\n", contestant.name, why_not);
    }
  }
  return result;
}

/// Runs in turns; `after_turn` gets all results so far. A contestant that gives no result is
/// dropped from `taking_part`, with a line.
Results measure(const Runner& runner, std::vector<Contestant> taking_part, const Job& job,
                int num_runs, const std::function<void(const Results&)>& after_turn, bool& failed) {
  Results results;
  for (int i = 0; i < num_runs; ++i) {
    std::erase_if(taking_part, [&](const Contestant& contestant) {
      auto outcome = runner.run(contestant, job);
      if (outcome.kind == Outcome::Kind::done) {
        fmt::print(stderr, "turn {}: {} {} {}, {:.0f} tokens/s\n", i + 1, contestant.name, job.size,
                   job.dtype, outcome.result.tokens_per_second);
        results[contestant.name].push_back(std::move(outcome.result));
        return false;
      }
      failed = failed || outcome.kind == Outcome::Kind::failed;
      fmt::print("{} {} {} {}: {}\n", contestant.name, job.size, job.dtype,
                 outcome.kind == Outcome::Kind::failed ? "failed" : "skipped", outcome.why);
      return true;
    });
    after_turn(results);
  }
  return results;
}

int print_bytes(const Options& options) {
  const Runner runner(options.runner);
  const auto ours = std::get<OurRun>(contestant_named("tessera_ddp").what);
  for (const auto& size : options.sizes) {
    for (const auto& dtype : options.dtypes) {
      const auto job = runner.write_job(ours, {.size = size, .dtype = dtype, .num_ranks = 1});
      const auto bytes = step_bytes(config::load_run_config(job.string(), {}).config);
      fmt::print("{} {}, one rank\n{}\n", size, dtype, table(bytes));
    }
  }
  return 0;
}

/// Returns the exit code.
int run_all(Options options) {
  const auto folder = fs::absolute(options.out).parent_path();
  fs::create_directories(folder);
  options.runner.errors = folder.string();
  const Runner runner(options.runner);
  const auto chosen =
      present(runner, options.contestants.empty() ? usual_contestants(options.num_ranks)
                                                  : options.contestants);
  fmt::print(
      "{} thread{} a rank; medians of {} runs that took turns; (x): times the baseline's\n"
      "others: share of the machine that other programs took, at worst; products: share of what "
      "matrix products reach here\n\n",
      options.threads, options.threads == 1 ? "" : "s", options.runs);
  nlohmann::json report{{"machine", machine()},
                        {"runs", options.runs},
                        {"ranks", options.num_ranks},
                        {"threads", options.threads},
                        {"unix_time", std::time(nullptr)}};
  bool failed = false;
  for (const auto& size : options.sizes) {
    for (const auto& dtype : options.dtypes) {
      const Job job{size, dtype, options.num_ranks, options.threads};
      const auto keep = [&](const Results& results) {  // what is done, if the rest is ended
        report["results"][size][dtype] = to_json(results);
        write_file(options.out, report.dump(1) + "\n");
      };
      const auto results = measure(runner, chosen, job, options.runs, keep, failed);
      fmt::print("{}\n", table(job, results));
      std::fflush(stdout);
    }
  }
  fmt::print("written to {}\n", options.out);
  return failed ? kFailureExit : 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  Options options;
  CLI::App app("Training on ranks of this machine, beside PyTorch, Accelerate and DeepSpeed",
               "tessera_bench");
  app.add_option("--sizes", options.sizes, "tiny, small")
      ->check(CLI::IsMember({"tiny", "small"}))
      ->capture_default_str();
  app.add_option("--dtypes", options.dtypes, "fp32, bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--ranks", options.num_ranks,
                 "Of data parallelism. 4: model parallelism, unless --contestants names others")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--contestants", options.contestants,
                 "Who takes part; unless given, all of that many ranks. Ours of two also with "
                 "_vendor: MKL's own choice of instructions, as in PyTorch");
  app.add_option("--runs", options.runs, "Runs of each; the table gives medians")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag("--bytes", options.bytes,
               "Print what the operators of a step read and write, one rank's, beside the least");
  app.add_option("--python", options.runner.python, "Python with the peers' packages")
      ->capture_default_str();
  app.add_option("--peers", options.runner.peers, "Folder of the peers' scripts, train_ddp.py ..");
  app.add_option("--out", options.out, "JSON file with every run")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return options.bytes ? print_bytes(options) : run_all(options);
  } catch (const tessera::UserError& error) {
    std::fprintf(stderr, "tessera_bench: %s\n", error.what());
    return tessera::kUserErrorExit;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera_bench: %s\n", error.what());
    return tessera::kFailureExit;
  }
}
