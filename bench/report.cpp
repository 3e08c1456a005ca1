#include "bench/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

namespace tessera::bench {
namespace {

using nlohmann::json;

double median_of(const std::vector<Result>& results, double Result::*member) {
  std::vector<double> values;
  for (const auto& result : results) values.push_back(result.*member);
  return median(std::move(values));
}

const std::vector<Result>* runs_of(const Results& results, const std::string& name) {
  const auto found = results.find(name);
  return found == results.end() || found->second.empty() ? nullptr : &found->second;
}

std::string row(const Job& job, const Contestant& contestant, const std::vector<Result>& runs,
                const std::vector<Result>* baseline) {
  const auto cell = [&](double Result::*member, int digits) {
    const double value = median_of(runs, member);
    const auto ratio =
        baseline ? fmt::format(" ({:.2f} x)", value / median_of(*baseline, member)) : "";
    return fmt::format("{:.{}f}{}", value, digits, ratio);
  };
  double foreign = 0;
  for (const auto& run : runs) foreign = std::max(foreign, run.foreign_cpu);
  const double limit = median_of(runs, &Result::matmul_limit);
  const auto ours = limit > 0 ? fmt::format("{:.0f} % of {:.0f} GFLOP/s, {:.0f} % waiting",
                                            100 * median_of(runs, &Result::mfu), limit / 1e9,
                                            100 * median_of(runs, &Result::wait_share))
                              : "";
  return fmt::format("{:<20} {:>5} {:<9} {:>17} {:>17} {:>15} {:>9.4f} {:>7.0f} %  {}\n",
                     contestant.name, ranks_of(contestant, job),
                     baseline ? contestant.baseline : "-", cell(&Result::tokens_per_second, 0),
                     cell(&Result::peak_memory_mib, 0), cell(&Result::first_step_seconds, 2),
                     median_of(runs, &Result::last_loss), 100 * foreign, ours);
}

/// Compares our sharded runs with our own DDP: what sharding costs.
std::string beside_our_ddp(const Results& results, std::string_view ending) {
  const auto* ddp = runs_of(results, fmt::format("tessera_ddp{}", ending));
  std::string text;
  for (const std::string kind : {"zero1", "zero2", "fsdp"}) {
    const auto* runs = runs_of(results, fmt::format("tessera_{}{}", kind, ending));
    if (ddp == nullptr || runs == nullptr) continue;
    const auto ratio = [&](double Result::*member) {
      return median_of(*runs, member) / median_of(*ddp, member);
    };
    text +=
        fmt::format("tessera_{0}{1} / tessera_ddp{1}: {2:.2f} x tokens/s, {3:.2f} x memory\n", kind,
                    ending, ratio(&Result::tokens_per_second), ratio(&Result::peak_memory_mib));
  }
  return text;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

std::string table(const Job& job, const Results& results) {
  auto text = fmt::format("{} {}\n{:<20} {:>5} {:<9} {:>17} {:>17} {:>15} {:>9} {:>9}  {}\n",
                          job.size, job.dtype, "run", "ranks", "(x) of", "tokens/s", "MiB per rank",
                          "first step s", "last loss", "others", "products");
  for (const auto& contestant : contestants()) {
    const auto* runs = runs_of(results, contestant.name);
    if (runs != nullptr) text += row(job, contestant, *runs, runs_of(results, contestant.baseline));
  }
  return text + beside_our_ddp(results, "") + beside_our_ddp(results, "_vendor");
}

json to_json(const Results& results) {
  json report = json::object();
  for (const auto& [name, runs] : results) {
    for (const auto& run : runs) {
      json entry{{"tokens_per_second", run.tokens_per_second},
                 {"peak_memory_mib", run.peak_memory_mib},
                 {"first_step_seconds", run.first_step_seconds},
                 {"last_loss", run.last_loss},
                 {"foreign_cpu", run.foreign_cpu}};
      if (run.versions.is_null()) {
        entry.update({{"matmul_limit_flops", run.matmul_limit},
                      {"mfu", run.mfu},
                      {"communication_wait_share", run.wait_share}});
      } else {
        entry["versions"] = run.versions;
      }
      report[name].push_back(std::move(entry));
    }
  }
  return report;
}

json machine() {
  utsname name{};
  ::uname(&name);
  const auto commit = output_of("git -C " + quoted(TESSERA_SOURCE_DIR) +
                                " describe --always --dirty --exclude '*' 2>/dev/null");
  return {{"processor", processor()},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"kernel", name.release},
          {"commit", commit.substr(0, commit.find('\n'))}};
}

}  // namespace tessera::bench
