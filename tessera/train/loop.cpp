#include "tessera/train/loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/mapped_files.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/launch/progress.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/memory/device_memory.h"
#include "tessera/report/clock.h"
#include "tessera/report/metrics.h"
#include "tessera/report/progress.h"
#include "tessera/report/summary.h"
#include "tessera/train/checkpointing.h"
#include "tessera/train/engine_options.h"
#include "tessera/train/generate.h"
#include "tessera/train/held_out.h"
#include "tessera/train/matmul_peak.h"
#include "tessera/train/memory_and_traffic.h"
#include "tessera/train/out_of_memory.h"
#include "tessera/train/preflight.h"
#include "tessera/train/profile.h"
#include "tessera/train/reference.h"
#include "tessera/train/step.h"
#include "tessera/train/watch.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool validates_after(const Run& run, int64_t step) {
  const auto every = run.config.train.validate_every;
  return step == run.num_steps || (every > 0 && step % every == 0);
}

/// Memory of the process, or on a GPU what the process has of it: now, and at most so far.
report::ProcessMemory memory_of(const Run& run) {
  if (run.device.is_cpu()) return report::process_memory();
  const auto memory = memory::device_memory(run.device);
  return {.current_bytes = memory.reserved, .peak_bytes = memory.peak_reserved};
}

std::vector<int64_t> peak_memory_by_rank(const Run& run) {
  std::vector<int64_t> peaks;
  for (const auto& text : run.world.all_gather_bytes(std::to_string(memory_of(run).peak_bytes))) {
    peaks.push_back(std::stoll(text));
  }
  return peaks;
}

/// What an adapter trains of the whole model.
std::string trained_text(const Run& run) {
  const auto& adapter = run.adapter;
  const auto& shape = run.plan.shape;
  return models::trained_text(
      models::num_trained(adapter, shape),
      models::num_parameters(shape) + models::num_of_adapter(adapter, shape));
}

/// Collective.
std::vector<std::string> before_first_step(const Run& run) {
  auto lines = preflight(run);
  for (auto& line : lines) line.insert(0, "offload: ");
  if (run.adapter.type != models::AdapterType::none) lines.push_back(trained_text(run));
  return lines;
}

std::vector<report::UnitWait> unit_waits(const Run& run) {
  std::vector<report::UnitWait> waits;
  for (const auto& [unit, times] : run.parallel.waits()) {
    waits.push_back({unit, (times.gather_wait_seconds + times.reduce_wait_seconds) /
                               static_cast<double>(std::max<int64_t>(1, run.num_steps))});
  }
  return waits;
}

/// Seconds that this rank has stood still for communication.
double wait_seconds(const Run& run) {
  double seconds = 0;
  for (const auto& axis : run.axes) seconds += axis.counters().total().wait_seconds;
  return seconds;
}

using Say = std::function<void(const std::vector<std::string>&)>;

/// The text that a run ends with; on every rank, as a sharded model is gathered along the way. It
/// takes its time, so rank 0 says how far it is.
std::string sample_text(Run& run, const Say& say) {
  const auto& train = run.config.train;
  constexpr double kSecondsBetween = 5;
  say({fmt::format("generating {} tokens of text (train.sample_tokens)", train.sample_tokens)});
  auto said = Clock::now();
  int64_t num_done = 0;
  const auto on_token = [&](int64_t) {
    ++num_done;
    if (seconds_since(said) < kSecondsBetween) return;
    said = Clock::now();
    say({fmt::format("generated {} of {} tokens", num_done, train.sample_tokens)});
  };
  return generate(run, train.sample_prompt,
                  {.num_tokens = train.sample_tokens, .on_token = on_token});
}

/// Rank 0's lines for people from before there is a Watch, which begins with the steps.
std::function<void(const std::string&)> told_before_start(const Run& run) {
  return [&run](const std::string& line) {
    if (run.world.rank() != 0) return;
    report::Progress({.mode = run.config.logging.progress}).message(line);
  };
}

/// What may help a run that NaN or infinity ends.
std::string advice(const Run& run, int64_t step, const std::string& cause) {
  const bool is_first = step == 1;  // nothing was updated yet
  auto text = std::string(is_first ? "look at the weights and the data that it begins with"
                                   : "lower optimizer.learning_rate");
  if (!run.config.optimizer.in_backward) text += ", or set train.nonfinite to skip";
  return cause.empty() ? text : text + ", or name the layer in precision.fp8_keep";
}

/// What a step says beside its figures. SystemError: a loss or gradients that end the run.
void tell_of(const Run& run, const StepResult& result, int64_t step, const Say& say) {
  const auto& cause = result.without_scale;
  // Gradients alone may be those of a scale that is too large.
  const bool by_scale = run.loss_scaler && std::isfinite(result.loss);
  if (result.skipped && !by_scale && run.config.train.nonfinite == train::Nonfinite::stop) {
    throw SystemError(
        fmt::format("step {}: NaN or infinity, first in unit {} (loss {}, gradient norm {}){}; {}",
                    step, result.nonfinite_unit, result.loss, result.grad_norm,
                    cause.empty() ? "" : fmt::format(": {}, which has no scale in 8 bits", cause),
                    advice(run, step, cause)));
  }
  if (result.skipped) {
    say({fmt::format("step {} skipped: NaN or infinity, first in unit {}{}", step,
                     result.nonfinite_unit, cause.empty() ? "" : ": " + cause)});
  }
  if (!result.parameters_without_gradient.empty()) {
    say({fmt::format("no gradient in the first step: {}",
                     fmt::join(result.parameters_without_gradient, ", "))});
  }
}

/// Signals reach the steps, and the launcher hears what the steps are at.
void connect(Run& run, const Checkpointing& checkpointing, launch::StepBeacon& beacon) {
  if (checkpointing.enabled()) launch::note_stop_signals();
  run.requests = [&checkpointing] {
    return StepRequests{.save = checkpointing.wanted(),
                        .stop = launch::stop_signal() != 0,
                        .lost_data = !lost_file().empty()};
  };
  if (run.pipeline_axis.size() == 1) return;
  run.watch_action = [&beacon](const auto& action) { beacon.doing(schedule::describe(action)); };
}

/// The right to write into the run folder, on rank 0. Collective.
std::optional<checkpoint::FolderLock> lock_run_folder(const Run& run) {
  std::optional<checkpoint::FolderLock> lock;
  checkpoint::run_on_all(run.world, [&] {
    if (run.world.rank() == 0) lock.emplace(run.config.train.run_dir, "run.lock");
    return "";
  });
  return lock;
}

/// Ends a run whose data was cut, with a checkpoint of its last whole step, unless its backward
/// updates weights: they have taken some of the cut one. Collective. UserError names the file, on
/// every rank.
[[noreturn]] void end_without_data(const Run& run, Checkpointing& checkpointing,
                                   const Counts& counts, const Say& say) {
  if (counts.step > 0 && !run.config.optimizer.in_backward) {
    say(checkpointing.after_step(counts, std::nullopt, {.save = true}));
    say(checkpointing.finish());
  }
  checkpoint::run_on_all(run.world, [] { return check_mapped_files(), ""; });
  throw SystemError("training data was cut while it was read");
}

std::string stopped_text(int64_t step, int64_t steps) {
  return fmt::format(
      "stopped at step {} of {} as a signal asked; start it again with checkpoint.resume=auto to "
      "go on (exit code {})",
      step, steps, kPreemptedExit);
}

std::string nothing_left_text(int64_t step, int64_t steps) {
  return fmt::format("step {} of {}: nothing left to do", step, steps);
}

/// Below 0: the peak is not known.
double mfu_of(const Run& run, double tokens_per_second, double peak_flops) {
  if (peak_flops <= 0) return -1;
  return tokens_per_second / peak_flops *
         models::adapter_flops_per_token(run.adapter, run.model->shape(), run.config.data.seq_len);
}

struct StepTimes {
  double seconds = 0, waited_seconds = 0;
};

void add_validation(report::StepRecord& record, BestValidation& best, const Run& run,
                    std::optional<ValidationResult> found) {
  if (!found) return;
  if (!std::isfinite(found->loss) && run.config.train.nonfinite == train::Nonfinite::stop) {
    throw SystemError(fmt::format(
        "step {}: the validation loss is NaN or infinite: the last update broke the weights, or "
        "16 bits do not hold what a validation row gives; go on from an earlier checkpoint with a "
        "lower optimizer.learning_rate, or set train.nonfinite to skip",
        record.step));
  }
  best.add(record.step, found->loss, run.config.train.early_stopping_threshold);
  record.validation_loss = found->loss;
  record.validation_figures = std::move(found->figures);
}

/// A step's figures, and of all so far what it adds to: its counts, its speed beside the peak.
report::StepRecord count_step(const Run& run, const StepResult& result, int64_t step,
                              Counts& counts, const StepTimes& times, double peak_flops) {
  counts.step = step;
  counts.samples_seen += run.config.train.global_batch;
  counts.tokens_seen += result.num_tokens;
  const double speed = static_cast<double>(result.num_tokens) / times.seconds;
  return {.step = step,
          .loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = result.learning_rate,
          .step_seconds = times.seconds,
          .tokens_per_second = speed,
          .mfu = mfu_of(run, speed, peak_flops),
          .communication_wait_seconds = times.waited_seconds,
          .drive_wait_seconds =
              run.drives ? std::optional(run.drives->last.wait_seconds) : std::nullopt,
          .tokens_seen = counts.tokens_seen,
          .memory_bytes = memory_of(run).current_bytes,
          .figures = result.figures,
          .experts = result.experts,
          .fp8 = result.fp8};
}

/// The step; the one of logging.profile_step with a trace of what it does.
StepResult profiled_step(Run& run, int64_t step) {
  std::optional<Profile> profile;
  if (step == run.config.logging.profile_step) {
    profile.emplace(ProfileOptions{.output_trace_dir = run.config.train.run_dir}, run.world.rank());
  }
  StepResult result;
  within_memory(run, step, [&] { result = train_step(run, step - 1); });
  if (profile) profile->stop();
  return result;
}

/// What is known at the end of a run. Collective.
report::RunSummary new_summary(const Run& run, int world_size) {
  return {
      .run_dir = run.config.train.run_dir,
      .world_size = world_size,
      .parameters = models::num_parameters(run.model->shape()),
      .masked_share =
          models::masked_flops_per_token(run.model->shape(), run.config.data.seq_len) /
          models::adapter_flops_per_token(run.adapter, run.model->shape(), run.config.data.seq_len),
      .loss_is_by_token = run.config.preference.loss == PreferenceLoss::none};
}

/// Where all ranks have just done a step.
void add_peak(report::RunSummary& summary, const Run& run) {
  auto peak = matmul_peak(run);
  summary.matmul_peak_flops = peak.flops * static_cast<double>(summary.world_size);
  summary.matmul_peak_note = std::move(peak.note);
}

void add_totals(report::RunSummary& summary, const Run& run, const Counts& counts) {
  if (counts.best.loss) summary.best_validation = {counts.best.step, *counts.best.loss};
  summary.ended_early = early_end(run, counts);
  summary.peak_memory_bytes = peak_memory_by_rank(run);
  summary.memory = memory_account(run);
  summary.traffic = traffic_account(run);
  summary.unit_waits = unit_waits(run);
}

}  // namespace

int train_loop(Run& run, const launch::RankEnvironment& environment) {
  const auto& train = run.config.train;
  const auto lock = lock_run_folder(run);
  prepare_reference(run, told_before_start(run));
  const auto resumed = resume(run);
  Counts counts = resumed.counts;
  Checkpointing checkpointing(run, resumed);
  std::optional<Watch> watch;
  if (environment.rank == 0) watch.emplace(run, environment.world_size, counts.step);
  const auto say = [&](const std::vector<std::string>& lines) {
    if (!watch) return;
    for (const auto& line : lines) watch->message(line);
  };
  say(resumed.notes);
  say(before_first_step(run));
  auto beacon = launch::StepBeacon::from_environment();
  connect(run, checkpointing, beacon);
  auto summary = new_summary(run, environment.world_size);
  const HeldOut held_out(run);
  if (counts.step == 0) held_out.before(run, summary, say);
  const int64_t first_step = counts.step + 1;
  if (is_done(run, counts)) say({nothing_left_text(counts.step, run.num_steps)});
  for (int64_t step = first_step; !is_done(run, counts); ++step) {
    beacon.set(step);
    const auto start = Clock::now();
    const double waited_before = wait_seconds(run);
    const auto result = profiled_step(run, step);
    const double seconds = seconds_since(start);
    beacon.doing({});
    if (result.requests.lost_data) end_without_data(run, checkpointing, counts, say);
    if (step == first_step) {
      summary.seconds_to_first_step = report::seconds_since_launch();
      add_peak(summary, run);
    }
    tell_of(run, result, step, say);
    summary.skipped_steps += result.skipped ? 1 : 0;
    auto record =
        count_step(run, result, step, counts, {seconds, wait_seconds(run) - waited_before},
                   summary.matmul_peak_flops);
    if (validates_after(run, step)) add_validation(record, counts.best, run, validate(run));
    summary.validation_loss = record.validation_loss;
    summary.validation_figures = record.validation_figures;
    if (watch) watch->step(record);
    say(checkpointing.after_step(counts, record.validation_loss, result.requests));
    if (result.requests.stop && !is_done(run, counts)) {
      say(checkpointing.finish());
      say({stopped_text(step, run.num_steps)});
      return kPreemptedExit;
    }
  }
  say(checkpointing.finish());
  add_totals(summary, run, counts);
  if (!summary.ended_early.empty()) say({summary.ended_early});
  if (train.sample_tokens > 0) summary.sample = sample_text(run, say);
  held_out.after(run, summary);
  if (!watch) return 0;
  summary.total_seconds = report::seconds_since_launch();
  watch->finish(std::move(summary));
  return 0;
}

}  // namespace tessera::train
