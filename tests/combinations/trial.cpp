#include "tests/combinations/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"
#include "tessera/models/hf_config.h"
#include "tessera/report/metrics.h"
#include "tests/combinations/data.h"
#include "tests/program/program.h"

namespace tessera::combinations {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kDeadline(
    180);  // of a run, which takes one or two on a quiet machine

void write_job(const Settings& job, const fs::path& path) {
  std::string text, section;
  for (const auto& [key, value] : job) {
    const auto dot = key.find('.');
    if (key.substr(0, dot) != section) {
      section = key.substr(0, dot);
      text += section + ":\n";
    }
    text += fmt::format("  {}: {}\n", key.substr(dot + 1), value);
  }
  write_file(path, text);
}

/// The configuration of a run that has been, on one rank without anything that only says how.
void write_plain_job(const fs::path& config_yaml, const fs::path& run_dir, const fs::path& path) {
  auto ran = config::load_run_config(config_yaml.string(), {}).config;
  std::vector<config::Override> base;
  for (const auto& [key, value] : base_settings()) base.push_back({.key = key, .value = value});
  auto plain = config::load_run_config("", base).config;
  for (const auto& section : config::sections()) {
    for (const auto& field : section.fields) {
      if (tried().at(field.key).role == Role::layout) continue;
      config::copy_field(field, ran, plain);
    }
  }
  plain.train.run_dir = run_dir.string();
  write_file(path, config::to_yaml(plain));
}

struct Result {
  std::map<int64_t, report::StepRecord> steps;
  std::map<int64_t, double> validation;
  std::map<std::string, std::vector<float>> tensors;
};

/// "optimizer/exp_avg/" of "optimizer/exp_avg/model.norm.weight"; empty of a weight.
std::string kind_of_state(const std::string& name) {
  constexpr std::string_view kPrefix = "optimizer/";
  if (!name.starts_with(kPrefix)) return "";
  return name.substr(0, name.find('/', kPrefix.size()) + 1);
}

Result read_result(const fs::path& run_dir) {
  Result result;
  const auto history = report::read_metrics(run_dir);
  for (const auto& record : history.steps) result.steps[record.step] = record;
  for (const auto& [step, loss] : history.validation) result.validation[step] = loss;
  const auto folders = checkpoint::checkpoints_in(run_dir);
  if (folders.empty()) user_error("{}: no checkpoint", run_dir.string());
  const auto source = checkpoint::open_source(folders.back().path);
  for (const auto& [name, info] : source->tensors()) {
    if (!checkpoint::is_float(info.dtype)) continue;
    std::vector<std::byte> stored(static_cast<size_t>(info.num_bytes()));
    source->read(name, 0, stored);
    auto& values = result.tensors[name];
    values.resize(static_cast<size_t>(info.num_elements()));
    checkpoint::convert_values(stored, info.dtype, std::as_writable_bytes(std::span(values)),
                               checkpoint::DType::f32);
    if (kind_of_state(name) == "optimizer/exp_avg_sq/") {  // as large as a gradient, not its square
      for (auto& value : values) value = std::sqrt(value);
    }
  }
  return result;
}

/// How far numbers may be apart: those of another order of the same sums, or of 16 bits.
struct Tolerance {
  double loss = 2e-5, norm = 2e-4;  // of the greater one
  double weights = 1e-2;            // of what the optimizer moved them, root mean square
  double state = 2e-3;              // of the optimizer's state, relative, root mean square
  double cancelled = 1e-5;          // of the largest state of its kind, root mean square
};

Tolerance tolerance_of(const config::RunConfig& config) {
  const auto& precision = config.precision;
  const bool full = precision.compute == FloatType::fp32 && precision.reduce == FloatType::fp32 &&
                    precision.parameters == FloatType::fp32 &&
                    precision.optimizer_states == optim::StateType::fp32;
  // Muon makes a matrix's small singular values as large as the others, and the rounding in them.
  if (full && config.optimizer.type == optim::OptimizerType::muon) return {.state = 1e-2};
  if (full) return {};
  return {.loss = 1e-2, .norm = 6e-2, .weights = 0.6, .state = 0.3};
}

bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

double rms(const std::vector<float>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, values.size())));
}

/// The largest state of each kind, root mean square. Where a gradient's terms nearly cancel, as
/// in the bias of keys, which adds nearly the same to all scores of a query, what is left holds
/// the rounding of sums far larger than itself.
std::map<std::string, double> largest_states(const Result& result) {
  std::map<std::string, double> largest;
  for (const auto& [name, values] : result.tensors) {
    if (const auto kind = kind_of_state(name); !kind.empty()) {
      largest[kind] = std::max(largest[kind], rms(values));
    }
  }
  return largest;
}

std::string tensors_differ(const Result& plain, const Result& result, const Tolerance& tolerance,
                           double moved) {
  const auto largest = largest_states(plain);
  for (const auto& [name, expected] : plain.tensors) {
    const auto found = result.tensors.find(name);
    if (found == result.tensors.end()) return name + " is missing";
    if (found->second.size() != expected.size()) return name + " has another size";
    auto difference = found->second;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
    const auto kind = kind_of_state(name);
    const double rounding = tolerance.loss / 2;  // of a stored number
    const double allowed =
        kind.empty() ? tolerance.weights * moved + rounding * rms(expected)
                     : tolerance.state * rms(expected) + tolerance.cancelled * largest.at(kind);
    if (!(rms(difference) <= allowed)) {
      return fmt::format("{} differs by {:.3g} (root mean square; {:.3g} allowed)", name,
                         rms(difference), allowed);
    }
  }
  if (result.tensors.size() != plain.tensors.size()) return "other tensors are stored";
  return "";
}

/// What of `result` is not as in the plain run, if anything.
std::string difference(const Result& plain, const Result& result, const Tolerance& tolerance,
                       double moved) {
  if (result.steps.empty() || result.steps.rbegin()->first != plain.steps.rbegin()->first) {
    return "other steps were run";
  }
  for (const auto& [step, record] : result.steps) {
    const auto& expected = plain.steps.at(step);
    if (!close(record.loss, expected.loss, tolerance.loss)) {
      return fmt::format("step {}: loss {} beside {}", step, record.loss, expected.loss);
    }
    if (!close(record.grad_norm, expected.grad_norm, tolerance.norm)) {
      return fmt::format("step {}: gradient norm {} beside {}", step, record.grad_norm,
                         expected.grad_norm);
    }
    if (record.tokens_seen != expected.tokens_seen ||
        record.learning_rate != expected.learning_rate) {
      return fmt::format("step {}: {} tokens at learning rate {} beside {} at {}", step,
                         record.tokens_seen, record.learning_rate, expected.tokens_seen,
                         expected.learning_rate);
    }
  }
  for (const auto& [step, loss] : result.validation) {
    const auto expected = plain.validation.find(step);
    if (expected == plain.validation.end()) return "other steps were validated";
    if (!close(loss, expected->second, tolerance.loss)) {
      return fmt::format("step {}: validation loss {} beside {}", step, loss, expected->second);
    }
  }
  return tensors_differ(plain, result, tolerance, moved);
}

/// The first 800 characters: what follows are backtraces and what other ranks say.
std::string first_lines(const std::string& text) { return text.substr(0, 800); }

class Session {
 public:
  Session(const Trial& trial, const fs::path& folder)
      : trial_(trial), folder_(fs::absolute(folder)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "model");
    write_data(folder_);
    write_file(folder_ / "model" / "config.json", models::to_hf_config(trial.shape).dump(2));
  }

  Outcome run() {
    if (!train("job", trial_.layout, "", first_options())) return outcome_;
    if (trial_.resumed) {
      const auto name = fmt::format("step_{:08}", trial_.resumed_step);
      const auto from = (folder_ / "job" / "checkpoints" / name).string();
      if (!train("resumed", *trial_.resumed, from, {})) return outcome_;
    }
    write_plain_job(folder_ / "job" / "config.yaml", folder_ / "plain", folder_ / "plain.yaml");
    if (!start("plain", {})) {
      outcome_.verdict = Verdict::failed;
      return outcome_;
    }
    compare();
    return outcome_;
  }

 private:
  std::vector<std::string> first_options() const {
    if (trial_.accelerate.empty()) return {};
    write_file(folder_ / "accelerate.yaml", trial_.accelerate);
    return {"--config_file", (folder_ / "accelerate.yaml").string(), "--cpu",
            "--parallel.num_ranks=" + trial_.layout.at("parallel.num_ranks")};
  }

  bool train(const std::string& name, const Settings& layout, const std::string& resume,
             const std::vector<std::string>& options) {
    auto job = job_of(trial_, layout);
    job["model.path"] = (folder_ / "model").string();
    name_data(folder_, job);
    job["train.run_dir"] = (folder_ / name).string();
    if (!resume.empty()) job["checkpoint.resume"] = resume;
    write_job(job, folder_ / (name + ".yaml"));
    return start(name, options);
  }

  bool start(const std::string& name, const std::vector<std::string>& options) {
    std::vector<std::string> arguments{"train", (folder_ / (name + ".yaml")).string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto end = run_tessera(
        arguments,
        {.environment = {{"OMP_WAIT_POLICY", "passive"}}, .input = "", .deadline = kDeadline});
    ++outcome_.runs;
    if (end.exit_code == 0 && end.in_time) return true;
    outcome_.verdict = end.exit_code == kUserErrorExit ? Verdict::refused : Verdict::failed;
    outcome_.text =
        fmt::format("{}: {}: {}", name,
                    end.in_time ? fmt::format("exit code {}", end.exit_code)
                                : fmt::format("not ended after {} s", kDeadline.count()),
                    first_lines(end.error));
    return false;
  }

  void compare() {
    const auto config = config::load_run_config((folder_ / "plain.yaml").string(), {}).config;
    const auto tolerance = tolerance_of(config);
    const double moved = config.optimizer.learning_rate * static_cast<double>(config.train.steps);
    const auto plain = read_result(folder_ / "plain");
    for (const std::string name : {"job", "resumed"}) {
      if (!fs::exists(folder_ / name)) continue;
      outcome_.text = difference(plain, read_result(folder_ / name), tolerance, moved);
      if (outcome_.text.empty()) continue;
      outcome_.verdict = Verdict::failed;
      outcome_.text = name + ": " + outcome_.text;
      return;
    }
  }

  const Trial& trial_;
  fs::path folder_;
  Outcome outcome_;
};

}  // namespace

Outcome run_trial(const Trial& trial, const fs::path& folder) {
  try {
    return Session(trial, folder).run();
  } catch (const std::exception& error) {
    return {.verdict = Verdict::failed, .text = error.what(), .runs = 0};
  }
}

}  // namespace tessera::combinations
