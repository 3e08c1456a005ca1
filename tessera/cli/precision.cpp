// tessera precision: what each preset of precision computes and keeps in.
#include "tessera/config/precision.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/worker_program.h"
#include "tessera/plan/fp8_units.h"
#include "tessera/plan/run_plan.h"

namespace tessera::cli {
namespace {

struct PrecisionArguments {
  std::string job;
  bool table = false;
};

void print_row(const std::string& name, const config::PrecisionRow& row, const std::string& bytes) {
  fmt::print("{:<11}{:<7}{:<15}{:<9}{:<15}{:<17}{:<18}{}\n", name, row.gemm, row.communication,
             row.weight, row.master_weight, row.gradient, row.states, bytes);
}

void print_row(const std::string& name, const config::PrecisionSection& section) {
  print_row(name, config::precision_row(section),
            fmt::format("{:.2f}", config::bytes_per_parameter(section)));
}

void run_precision(const PrecisionArguments& arguments) {
  if (!arguments.table && arguments.job.empty()) user_error("give --table, or a job file");
  std::optional<config::RunConfig> job;
  if (!arguments.job.empty()) job = config::load_run_config(job_file(arguments.job), {}).config;
  print_row("preset",
            {.gemm = "GEMM",
             .communication = "communication",
             .weight = "weight",
             .master_weight = "master weight",
             .gradient = "weight gradient",
             .states = "optimizer states"},
            "bytes/parameter");
  for (size_t i = 1; arguments.table && i < kTexts<PrecisionPreset>.size(); ++i) {
    const auto name = std::string(kTexts<PrecisionPreset>[i]);
    const auto loaded = config::load_run_config("", {{.key = "precision.preset", .value = name}});
    print_row(name, loaded.config.precision);
  }
  if (!job) return;
  auto& config = *job;
  print_row("this job", config.precision);
  if (config.precision.matmul == Matmul::as_compute) return;
  auto& ranks = config.parallel.num_ranks;
  ranks = std::max<int64_t>(1, ranks);  // of a number that the machine decides
  const auto plan = plan::make_plan(config, config::resolve_model_shape(config.model));
  fmt::print("products: {}\n",
             plan::units_text(config.precision.matmul, config.precision.fp8_emulate));
  fmt::print("layers by what products in 8 bits gain on a device that has them:\n");
  for (const auto& line : plan::fp8_table(plan.fp8)) fmt::print("  {}\n", line);
}

}  // namespace

void add_precision(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PrecisionArguments>();
  auto* command = app.add_subcommand(
      "precision", "Show in which types the presets of precision, or a job, compute and keep");
  command->footer(
      "Bytes are of weight, master weight, gradient and AdamW's states of a parameter of a linear "
      "layer, over all ranks of one copy; of a job that multiplies in 8 bits its layers follow, "
      "with what that gains.\nExample:\n  tessera precision --table");
  command->add_option("job", arguments->job, "Job file whose row is shown")->type_name("JOB.yaml");
  command->add_flag("--table", arguments->table, "All presets");
  command->callback([arguments, &exit_code] {
    run_precision(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
