#include "tessera/cli/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/text.h"
#include "tessera/config/precision.h"
#include "tessera/config/stored_job.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/spec.h"
#include "tessera/report/metrics.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// A model's name on the Hub, which a job names, or in whose cache the path lies that it names; "".
std::string hub_name(const std::string& model) {
  constexpr std::string_view kCached = "models--";
  for (const auto& part : fs::path(model)) {
    auto name = part.string();
    if (!name.starts_with(kCached)) continue;
    name.erase(0, kCached.size());
    const auto dashes = name.find("--");
    return dashes == std::string::npos ? "" : name.replace(dashes, 2, "/");
  }
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./").find(static_cast<char>(c)) != std::string_view::npos;
  };
  const bool one_slash = std::ranges::count(model, '/') == 1;
  const bool inside =
      one_slash && model.front() != '/' && model.back() != '/' && model.front() != '.';
  return inside && std::ranges::all_of(model, allowed) && !fs::exists(model) ? model : "";
}

/// Rows "| name | value |".
std::string facts(const checkpoint::TrainingSource& training) {
  std::string rows = "| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    rows += fmt::format("| {} | {} |\n", name, value);
  };
  const auto& config = training.about.model;
  const auto type = config.value("model_type", nlohmann::json());
  if (type.is_string() && models::find_spec(type.get<std::string>()) != nullptr) {
    const auto shape = models::model_shape_of(config, training.tensors.path().string());
    row("architecture", type.get<std::string>());
    row("parameters", fmt::format("{}", models::num_parameters(shape)));
  }
  const int64_t step = training.about.step;
  row("optimizer steps", fmt::format("{}", step));
  if (const auto precision = config::stored_precision(training.about.state)) {
    const auto note = config::weights_note(*precision);
    row("trained in", config::row_text(*precision) + (note.empty() ? "" : "; " + note));
  }
  const auto run = training.tensors.path().parent_path().parent_path();
  if (fs::exists(run / report::kMetricsFile)) {
    const auto history = report::read_metrics(run);
    const auto last = std::ranges::find(history.steps, step, &report::StepRecord::step);
    if (last != history.steps.end()) {
      row("tokens seen", fmt::format("{}", last->tokens_seen));
      row("training loss",
          fmt::format("{:.4f} at step {}, {:.4f} at step {}", history.steps.front().loss,
                      history.steps.front().step, last->loss, step));
    }
    const auto validated = std::ranges::find(history.validation, step, &report::StepValue::first);
    if (validated != history.validation.end())
      row("validation loss", fmt::format("{:.4f}", validated->second));
  } else if (training.validation_loss) {
    row("validation loss", fmt::format("{:.4f}", *training.validation_loss));
  }
  return rows;
}

}  // namespace

std::string model_card(const checkpoint::TrainingSource& training, const std::string& name) {
  const auto& job = training.about.config;
  if (job.empty()) return "";
  const auto base = hub_name(config::read_stored_job(job).model);
  std::string card = "---\nlibrary_name: transformers\npipeline_tag: text-generation\n";
  if (!base.empty()) card += fmt::format("base_model: {}\n", base);
  card += "tags:\n- tessera\n---\n\n";
  card += fmt::format("# {}\n\n", printable(name));
  card += base.empty() ? "Trained with Tessera.\n\n"
                       : fmt::format("{} trained further with Tessera.\n\n", base);
  card += facts(training);
  card += "\nLosses are in nats per token. This is the job that `tessera train` ran:\n\n";
  // A fence longer than any in the job.
  std::string fence = "```";
  while (job.find(fence) != std::string::npos) fence += '`';
  return card + fence + "yaml\n" + job + (job.ends_with('\n') ? "" : "\n") + fence + "\n";
}

}  // namespace tessera::cli
