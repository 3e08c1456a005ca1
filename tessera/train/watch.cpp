#include "tessera/train/watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/units.h"
#include "tessera/config/precision.h"
#include "tessera/report/svg.h"

namespace tessera::train {
namespace {

/// What was read of the data, and how often the run sees it.
std::vector<std::string> data_lines(const Run& run) {
  auto lines = run.data_notes;
  const auto& data = run.config.data;
  const auto& train = run.config.train;
  const auto& sampler = run.train_loader.sampler();
  for (size_t i = 0; i < data.weights.size(); ++i) {
    lines[i] += fmt::format("; weight {} ({:.1f} % of the rows), {:.3g} epochs", data.weights[i],
                            100 * sampler.share_of(i),
                            sampler.epochs_of(i, run.num_steps * train.global_batch));
  }
  if (train.epochs > 0) {
    lines.push_back(fmt::format("{} epochs of {} rows: {} steps of {} rows", train.epochs,
                                run.train_loader.data().size(), run.num_steps, train.global_batch));
  }
  return lines;
}

report::HyperParameters hyper_parameters(const Run& run, int world_size) {
  const auto& config = run.config;
  return {{"model/preset", config.model.preset},
          {"optimizer/type", std::string(text_of(config.optimizer.type))},
          {"optimizer/learning_rate", config.optimizer.learning_rate},
          {"optimizer/weight_decay", config.optimizer.weight_decay},
          {"schedule/type", std::string(text_of(config.schedule.type))},
          {"data/seq_len", static_cast<double>(config.data.seq_len)},
          {"train/global_batch", static_cast<double>(config.train.global_batch)},
          {"train/steps", static_cast<double>(run.num_steps)},
          {"parallel/ranks", static_cast<double>(world_size)}};
}

}  // namespace

Watch::Watch(const Run& run, int world_size, int64_t steps_done)
    : run_(run), folder_(run.config.train.run_dir) {
  const auto& logging = run.config.logging;
  const report::SinkOptions options{.run_dir = folder_, .steps_done = steps_done};
  sinks_.push_back(std::make_unique<report::MetricsLog>(options));
  auto progress = std::make_unique<report::Progress>(report::ProgressOptions{
      .mode = logging.progress, .total_steps = run.num_steps, .every = logging.every});
  progress_ = progress.get();
  sinks_.push_back(std::move(progress));
  write_file(folder_ / "config.yaml", config::to_yaml(run.config));
  introduce(world_size);
  if (steps_done > 0) {
    const auto history = report::read_metrics(folder_);
    for (const auto& record : history.steps) add(record);
    validation_ = history.validation;
  }
  if (logging.tensorboard) sinks_.push_back(report::make_sink("tensorboard", options));
  for (const auto& name : logging.report_to) sinks_.push_back(report::make_sink(name, options));
  const auto values = hyper_parameters(run, world_size);
  for (auto& sink : sinks_) sink->hyper_parameters(values);
}

Watch::~Watch() {
  for (auto& sink : sinks_) {
    try {
      sink->finish(/*success=*/false);
    } catch (const SystemError&) {  // a full disk must not hide why the run ended
    }
  }
}

void Watch::add(const report::StepRecord& record) {
  totals_.add(record), experts_.add(record), fp8_.add(record);
}

void Watch::step(const report::StepRecord& record) {
  for (auto& sink : sinks_) sink->step(record);
  add(record);
  if (record.validation_loss) validation_.emplace_back(record.step, *record.validation_loss);
}

void Watch::finish(report::RunSummary summary) {
  for (auto& sink : std::exchange(sinks_, {})) sink->finish(/*success=*/true);
  totals_.fill(summary);
  summary.experts = experts_.last();
  summary.fp8 = fp8_.last();
  summary.forced_balance = run_.config.moe.force_balance;
  if (run_.config.logging.svg) {
    const auto subtitle = fmt::format(
        "{}, {} rank{}, {} tokens a step",
        run_.config.model.path.empty() ? run_.config.model.preset : run_.config.model.path,
        summary.world_size, summary.world_size == 1 ? "" : "s",
        run_.config.train.global_batch * run_.config.data.seq_len);
    write_file(folder_ / "loss.svg",
               report::loss_curve_svg(
                   totals_.losses(), validation_,
                   {.title = "Loss of " + folder_.filename().string(), .subtitle = subtitle}));
    if (!experts_.empty()) {
      write_file(folder_ / "experts.svg",
                 report::expert_load_svg(
                     experts_, {.title = "Load of the experts of " + folder_.filename().string(),
                                .subtitle = subtitle}));
    }
    if (!fp8_.empty()) {
      write_file(folder_ / "fp8.svg",
                 report::layer_map_svg(fp8_.lost(), {.title = "Numbers lost to 8 bits in " +
                                                              folder_.filename().string(),
                                                     .subtitle = subtitle,
                                                     .measure = "% of the worst operand",
                                                     .least_darkest = 0.1}));
    }
  }
  write_file(folder_ / "summary.json", report::to_json(summary));
  fmt::print("{}", report::format_summary(summary));
}

void Watch::introduce(int world_size) {
  const auto& config = run_.config;
  message(
      fmt::format("{} parameters, {} rank{}, batch {} x {} tokens, run folder {}",
                  format_count(static_cast<double>(models::num_parameters(run_.model->shape()))),
                  world_size, world_size == 1 ? "" : "s", config.train.global_batch,
                  config.data.seq_len, folder_.string()));
  for (const auto& line : data_lines(run_)) message("data: " + line);
  message("precision: " + config::row_text(config::precision_row(config.precision)));
  if (!run_.weights_note.empty()) message(run_.weights_note);
  if (!run_.fp8_note.empty()) message("precision.matmul: " + run_.fp8_note);
  if (config::keeps_losers(config.precision)) {
    message("precision.fp8_keep auto, by what products in 8 bits gain on a device that has them:");
    for (const auto& line : plan::fp8_table(run_.plan.fp8)) message("  " + line);
  }
  if (config.moe.force_balance) {
    message(
        "moe.force_balance: EXPERTS TAKE TURNS, routers are not asked: for timing alone, the model "
        "that comes of it is of no use");
  }
  if (config.precision.parameters == FloatType::fp32) return;
  message(fmt::format(
      "precision.parameters {}: weights have no fp32 copy, {}",
      text_of(config.precision.parameters),
      config.precision.stochastic_rounding
          ? "updates are rounded at random"
          : "small updates are lost (precision.stochastic_rounding keeps them on average)"));
}

}  // namespace tessera::train
