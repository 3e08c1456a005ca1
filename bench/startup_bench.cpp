// How long it takes to shard a model, by its number of units: make_units alone and fully_shard
// (which calls it), on one rank. A unit is a block of two linear layers of 8 x 8, so that what is
// timed grows with the number of modules, not with their elements. The time is that of the
// processor: one thread does it all, whatever else the machine does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/contestants.h"
#include "bench/report.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"

namespace tessera::bench {
namespace {

using nlohmann::json;
using parallel::UnitRule;
using parallel::UnitRuleKind;

struct BlockImpl : nn::Hookable {
  BlockImpl() { register_module("in", in), register_module("out", out); }
  torch::Tensor forward(const torch::Tensor& x) { return out(in(x)); }
  nn::Linear in{8, 8}, out{8, 8};
};
using Block = nn::Hooked<BlockImpl>;

struct Model : nn::Hookable {
  explicit Model(int num_blocks) {
    for (int i = 0; i < num_blocks; ++i) register_module(fmt::format("block{}", i), Block());
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(1);
  }
};

struct Case {
  const char* name;
  UnitRule rule;
};
const Case kCases[] = {
    {"by_class", {.kind = UnitRuleKind::by_class, .classes = {"Block"}}},
    {"by_size", {.kind = UnitRuleKind::by_size, .min_num_params = 128}},  // a block; a layer has 64
    {"by_name", {.kind = UnitRuleKind::by_name, .patterns = {"block*"}}},
};

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

json measure(const Case& one, int num_units, int runs) {
  const mesh::DeviceMesh mesh;
  std::vector<double> make, shard;
  for (int run = 0; run < runs; ++run) {
    Model model(num_units);
    size_t made = 0;
    make.push_back(seconds_of([&] { made = parallel::make_units(model, one.rule).size(); }));
    TORCH_INTERNAL_ASSERT(made == static_cast<size_t>(num_units));
    shard.push_back(seconds_of([&] { fully_shard(model, mesh, {}, one.rule); }));
  }
  return {{"rule", one.name},
          {"units", num_units},
          {"make_units_seconds", median(make)},
          {"fully_shard_seconds", median(shard)},
          {"fully_shard_microseconds_per_unit", 1e6 * median(shard) / num_units},
          {"runs", {{"make_units_seconds", make}, {"fully_shard_seconds", shard}}}};
}

/// Milliseconds of fully_shard by the number of units, both axes logarithmic; a line for each rule.
std::string picture(const json& rows) {
  constexpr double kLeft = 70, kRight = 560, kTop = 60, kBottom = 340;
  const double least_units = 10, most_units = 3000, least_ms = 0.1, most_ms = 1000;
  const auto along = [](double value, double least, double most) {
    return std::log(value / least) / std::log(most / least);
  };
  const auto x = [&](double units) {
    return kLeft + (kRight - kLeft) * along(units, least_units, most_units);
  };
  const auto y = [&](double ms) {
    return kBottom - (kBottom - kTop) * along(ms, least_ms, most_ms);
  };
  std::string svg = R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 390" role="img">
<title>Time to shard a model, by its number of units</title>
<style>text{font:13px sans-serif;fill:#555}.title{font-size:16px}path{fill:none;stroke:#8884}
.line{stroke-width:2.5}.by_class{stroke:#2a78d6;fill:#2a78d6}.by_size{stroke:#1baf7a;fill:#1baf7a}
.by_name{stroke:#d9822b;fill:#d9822b}path.line{fill:none}text.mark{stroke:none}</style>
<rect width="600" height="390" fill="#fff"/>
<text class="title" x="24" y="30">fully_shard: milliseconds of one processor, by the number of units</text>
)svg";
  for (const double units : {10, 30, 100, 300, 1000, 3000}) {
    svg += fmt::format(
        R"svg(<path d="M{0:.0f} {1}V{2}"/><text x="{0:.0f}" y="{3}" text-anchor="middle">{4:.0f}</text>)svg",
        x(units), kTop, kBottom, kBottom + 20, units);
  }
  for (const double ms : {0.1, 1.0, 10.0, 100.0, 1000.0}) {
    svg += fmt::format(
        R"svg(<path d="M{0} {1:.0f}H{2}"/><text x="{3}" y="{4:.0f}" text-anchor="end">{5}</text>)svg",
        kLeft, y(ms), kRight, kLeft - 8, y(ms) + 4, ms);
  }
  double legend = kTop + 20;
  for (const auto& one : kCases) {
    std::string line, dots;
    for (const auto& row : rows) {
      if (row["rule"] != one.name) continue;
      const double at = x(row["units"].get<double>());
      const double height = y(1e3 * row["fully_shard_seconds"].get<double>());
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", at, height);
      dots += fmt::format(R"(<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"/>)", one.name, at,
                          height);
    }
    svg += fmt::format(
        R"(<path class="line {0}" d="{1}"/>{2}<text class="mark {0}" x="{3}" y="{4}">{0}</text>)"
        "\n",
        one.name, line, dots, kLeft + 14, legend);
    legend += 20;
  }
  return svg + "</svg>\n";
}

struct Options {
  std::vector<int> units{10, 30, 100, 300, 1000, 3000};
  int runs = 5;
  std::string out = "build/startup.json", svg = "build/startup.svg";
};

void run(const Options& options) {
  measure(kCases[0], 10, 1);  // what LibTorch does once
  fmt::print(
      "| rule | units | make_units s | fully_shard s | us per unit |\n|---|---|---|---|---|\n");
  json rows = json::array();
  for (const auto& one : kCases) {
    for (const int num_units : options.units) {
      const auto row = rows.emplace_back(measure(one, num_units, options.runs));
      fmt::print("| {} | {} | {:.5f} | {:.5f} | {:.1f} |\n", one.name, num_units,
                 row["make_units_seconds"].get<double>(), row["fully_shard_seconds"].get<double>(),
                 row["fully_shard_microseconds_per_unit"].get<double>());
      std::fflush(stdout);
    }
  }
  write_file(options.out, json{{"machine", machine()}, {"rows", rows}}.dump(1) + "\n");
  write_file(options.svg, picture(rows));
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::bench::Options options;
  CLI::App app("Seconds of make_units and fully_shard by the number of units; medians");
  app.add_option("--units", options.units, "Numbers of units");
  app.add_option("--runs", options.runs, "Of each, every one on a new model");
  app.add_option("--out", options.out, "JSON file");
  app.add_option("--svg", options.svg, "Picture");
  CLI11_PARSE(app, argc, argv);
  try {
    tessera::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera_startup_bench: {}\n", error.what());
    return tessera::kFailureExit;
  }
}
