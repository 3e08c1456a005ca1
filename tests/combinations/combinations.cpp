// Tries random combinations of settings, each beside one plain rank, for as long as it is told:
// `./dev soak MINUTES`. Single tests of single features do not find what goes wrong together.
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <regex>
#include <thread>
#include <vector>

#include "tests/combinations/reduce.h"
#include "tests/combinations/trial.h"

namespace tessera::combinations {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  double minutes = 1;
  int64_t trials = 1'000'000;
  uint64_t seed = static_cast<uint64_t>(std::time(nullptr) / 86400);  // another each day
  int jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  fs::path folder = fs::path("build") / "combinations";
  bool reduce = true;
};

/// A refusal as one line, without paths and numbers, so that equal ones are counted together.
std::string without_places(const std::string& text) {
  static const std::regex places("/[^ ]*|[0-9]+|\n.*");
  return std::regex_replace(text, places, "").substr(0, 200);
}

/// Trials by several threads at once; results under one lock.
class Search {
 public:
  explicit Search(const Options& options)
      : options_(options),
        draw_(options.seed),
        end_(Clock::now() +
             std::chrono::milliseconds(static_cast<int64_t>(options.minutes * 6e4))) {}

  int run() {
    fmt::print("seed {}, {:g} minutes, {} at a time\n", options_.seed, options_.minutes,
               options_.jobs);
    std::vector<std::thread> threads;
    for (int job = 0; job < options_.jobs; ++job) {
      threads.emplace_back([this, job] { work(options_.folder / fmt::format("job_{}", job)); });
    }
    for (auto& thread : threads) thread.join();
    report();
    return failed_ == 0 ? 0 : 1;
  }

 private:
  void work(const fs::path& folder) {
    while (true) {
      Trial trial;
      int64_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        if (Clock::now() >= end_ || drawn_ == options_.trials) return;
        number = ++drawn_;
        trial = draw_.next();
      }
      const auto outcome = run_trial(trial, folder);
      {
        const std::lock_guard lock(mutex_);
        runs_ += outcome.runs;
        if (outcome.verdict == Verdict::equal) ++equal_;
        if (outcome.verdict == Verdict::equal && trial.resumed) ++resumed_;
        if (outcome.verdict == Verdict::equal && !trial.accelerate.empty()) ++accelerate_;
        if (outcome.verdict == Verdict::refused) ++refusals_[without_places(outcome.text)];
        if (outcome.verdict == Verdict::failed) {
          ++failed_;
          fmt::print("trial {} failed: {}\n", number, outcome.text);
          std::fflush(stdout);
        }
      }
      if (outcome.verdict == Verdict::failed && options_.reduce)
        tell_smallest(trial, number, folder);
      const std::lock_guard lock(mutex_);
      if (Clock::now() - told_ < std::chrono::seconds(20)) continue;
      told_ = Clock::now();
      fmt::print("{} trials: {} equal, {} refused, {} failed; {} pairs of values\n", drawn_, equal_,
                 drawn_ - equal_ - failed_, failed_, draw_.num_pairs());
      std::fflush(stdout);
    }
  }

  void tell_smallest(const Trial& trial, int64_t number, const fs::path& folder) {
    const auto give_up = Clock::now() + std::chrono::minutes(5);
    const auto smallest = reduced(trial, [&](const Trial& other) {
      return Clock::now() < give_up && run_trial(other, folder).verdict == Verdict::failed;
    });
    const auto kept = options_.folder / fmt::format("seed_{}_trial_{}", options_.seed, number);
    const auto outcome = run_trial(smallest, kept);
    const std::lock_guard lock(mutex_);
    fmt::print("trial {}, the fewest settings ({}): {}\n", number, kept.string(), outcome.text);
    const auto tell = [](const char* name, const Settings& settings) {
      for (const auto& [key, value] : settings) fmt::print("  {} {}: {}\n", name, key, value);
    };
    tell("function", smallest.function);
    tell("layout", smallest.layout);
    if (smallest.resumed) tell("resumed", *smallest.resumed);
    if (!smallest.accelerate.empty()) fmt::print("{}\n", smallest.accelerate);
    std::fflush(stdout);
  }

  void report() const {
    for (const auto& [text, count] : refusals_) fmt::print("refused {} times: {}\n", count, text);
    fmt::print(
        "seed {}: {} trials in {} runs of the program: {} equal to one plain rank ({} resumed "
        "under "
        "another layout, {} with a file of Accelerate's), {} refused, {} failed; {} pairs of "
        "values "
        "tried together, {} pairs of keys\n",
        options_.seed, drawn_, runs_, equal_, resumed_, accelerate_, drawn_ - equal_ - failed_,
        failed_, draw_.num_pairs(), draw_.num_key_pairs());
  }

  const Options options_;
  Draw draw_;
  Clock::time_point end_, told_ = Clock::now();
  std::mutex mutex_;
  int64_t drawn_ = 0, runs_ = 0, equal_ = 0, resumed_ = 0, accelerate_ = 0, failed_ = 0;
  std::map<std::string, int64_t> refusals_;
};

}  // namespace
}  // namespace tessera::combinations

int main(int argc, char** argv) {
  tessera::combinations::Options options;
  CLI::App app("Random combinations of settings beside one plain rank");
  app.add_option("--minutes", options.minutes, "Begin no trial after");
  app.add_option("--trials", options.trials, "Begin no more trials than");
  app.add_option("--seed", options.seed, "Of the draw; default: today's");
  app.add_option("--jobs", options.jobs, "Trials at a time");
  app.add_flag("!--no-reduce", options.reduce, "Do not look for the fewest settings of a failure");
  app.add_option("--folder", options.folder, "Where they run, and where failures are kept");
  CLI11_PARSE(app, argc, argv);
  return tessera::combinations::Search(options).run();
}
