#include "tessera/cli/finetune_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/texts.h"
#include "tessera/base/units.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"
#include "tessera/predict/fit.h"

namespace tessera::cli {
namespace {

using memory::CheckpointMode;

constexpr int64_t kShortestRow = 256;

bool is_pairs(const DataFacts& facts) { return facts.shape == data::RowShape::preference; }

/// A job that is being made: a configuration, and why each key is as it is.
class Draft {
 public:
  config::RunConfig config;

  void chose(std::string key, std::string why = "") {
    keys_.emplace_back(std::move(key), std::move(why));
  }

  /// The user's own keys count.
  void apply(const std::vector<config::Override>& overrides) {
    const auto theirs = config::load_run_config("", overrides).config;
    for (const auto& [key, value, origin, if_effective] : overrides) {
      config::copy_field(*config::find_field(key), theirs, config);
      std::erase_if(keys_, [&key = key](const auto& chosen) { return chosen.first == key; });
      chose(key, origin);
    }
  }

  std::vector<std::pair<std::string, std::string>> take_keys() { return std::move(keys_); }

 private:
  std::vector<std::pair<std::string, std::string>> keys_;
};

/// The length that all but a few rows have at the most.
int64_t usual_length(std::vector<int64_t> lengths) {
  constexpr double kShare = 0.98;
  std::ranges::sort(lengths);
  return lengths[static_cast<size_t>(kShare * static_cast<double>(lengths.size() - 1))];
}

/// Rows of a power of two tokens into which nearly all documents go whole.
int64_t wanted_row(const DataFacts& facts, const models::ModelShape& shape) {
  int64_t row = kShortestRow;
  while (row < usual_length(facts.lengths)) row *= 2;
  return std::min(row, shape.max_seq_len);
}

/// What the method decides.
void choose_method(Method method, bool pairs, Draft& draft) {
  auto& optimizer = draft.config.optimizer;
  optimizer.weight_decay = 0;
  draft.chose("optimizer.weight_decay");
  if (method == Method::full) {
    optimizer.learning_rate = pairs ? 1e-6 : 1e-5;
    draft.chose("optimizer.learning_rate", "all weights move");
    return;
  }
  optimizer.learning_rate = pairs ? 2e-5 : 2e-4;
  draft.chose("optimizer.learning_rate", "adapters alone move");
  auto& adapter = draft.config.adapter;
  adapter.type = models::AdapterType::lora;
  adapter.targets = {"all-linear"};
  adapter.rank = 16, adapter.alpha = 32;
  draft.chose("adapter.type");
  draft.chose("adapter.targets", "every linear layer but the head");
  draft.chose("adapter.rank");
  draft.chose("adapter.alpha");
  if (method == Method::lora) return;
  draft.config.model.weights = WeightFormat::nf4_double;
  draft.chose("model.weights", "4.127 bits for each frozen weight");
}

void choose_ranks(const FinetuneRequest& request, Draft& draft) {
  auto& parallel = draft.config.parallel;
  parallel.num_ranks = request.num_ranks;
  draft.chose("parallel.num_ranks");
  if (request.num_ranks == 1) return;
  parallel.placement = parallel::Placement::full_shard;
  draft.chose("parallel.placement", "each rank keeps its part");
}

/// Tries settings for their memory.
class Trial {
 public:
  Trial(const FinetuneRequest& request, const models::ModelShape& shape, const DataFacts& facts)
      : request_(request), shape_(shape), pairs_(is_pairs(facts)) {}

  double bytes(Method method, int64_t row, CheckpointMode checkpointing) const {
    Draft draft;
    auto& config = draft.config;
    config.model.path = request_.model, config.model.init = models::Init::pretrained;
    choose_method(method, pairs_, draft);
    choose_ranks(request_, draft);
    config.precision.compute = FloatType::bf16;
    config.train.micro_batch = 1, config.train.global_batch = request_.num_ranks;
    if (pairs_) config.preference.loss = train::PreferenceLoss::sigmoid;
    draft.apply(request_.overrides);
    config.data.seq_len = row;
    config.memory.checkpointing = checkpointing;
    return predict::estimate_rank(config, shape_, request_.device, request_.memory_bytes)
        .memory()
        .device_bytes();
  }

  struct Found {
    CheckpointMode checkpointing = CheckpointMode::full;
    double bytes = 0;
  };

  /// With as much kept as the memory takes: what is not kept is computed twice.
  std::optional<Found> fitting(Method method, int64_t row) const {
    for (const auto mode : {CheckpointMode::none, CheckpointMode::selective,
                            CheckpointMode::feed_forward, CheckpointMode::full}) {
      const double needed = bytes(method, row, mode);
      if (needed <= request_.memory_bytes) return Found{mode, needed};
    }
    return {};
  }

  MethodMemory memory_of(Method method, int64_t row) const {
    MethodMemory found{.method = method, .bytes = bytes(method, row, CheckpointMode::full)};
    const auto most = shape_.max_seq_len;
    for (int64_t longer = std::min(kShortestRow, most); longer <= most; longer *= 2) {
      if (bytes(method, longer, CheckpointMode::full) > request_.memory_bytes) break;
      found.longest_row = longer;
    }
    return found;
  }

 private:
  const FinetuneRequest& request_;
  const models::ModelShape& shape_;
  bool pairs_;
};

struct Decision {
  Method method = Method::lora;
  int64_t row = 0;
  Trial::Found found;
};

/// The first method that fits rows of the wanted length, else the longest rows that one fits.
std::optional<Decision> decide(const FinetuneRequest& request, const Trial& trial, int64_t wanted) {
  const int64_t least = request.seq_len > 0 ? wanted : std::min(wanted, kShortestRow);
  for (int64_t row = wanted; row >= least; row /= 2) {
    for (const auto method : request.methods) {
      if (const auto found = trial.fitting(method, row)) return Decision{method, row, *found};
    }
  }
  return {};
}

void choose_data(const FinetuneRequest& request, const DataFacts& facts, int64_t row,
                 Draft& draft) {
  auto& data = draft.config.data;
  data.train = request.data;
  draft.chose("data.train");
  data.format = data::DataFormat::records;
  draft.chose("data.format", fmt::format("shape {}", text_of(facts.shape)));
  data.validation = request.validation;
  data.validation_fraction = 0.05;
  if (data.validation.empty()) {
    draft.chose("data.validation_fraction", "held out, to see what was learned");
  } else {
    draft.chose("data.validation");
  }
  const auto longer = std::ranges::count_if(facts.lengths, [&](int64_t n) { return n > row + 1; });
  data.seq_len = row;
  draft.chose("data.seq_len",
              fmt::format("documents are packed into rows; {} of {} are longer, and cut", longer,
                          facts.lengths.size()));
  if (!is_pairs(facts)) return;
  draft.config.preference.loss = train::PreferenceLoss::sigmoid;
  draft.chose("preference.loss", "DPO: rows are pairs of answers");
}

/// How long, and in which portions.
void choose_lengths(const FinetuneRequest& request, const DataFacts& facts, int64_t row,
                    Draft& draft) {
  constexpr int64_t kMostRows = 16, kMostWarmup = 10, kStepsOfEpoch = 10;
  const auto tokens = std::accumulate(facts.lengths.begin(), facts.lengths.end(), int64_t{0});
  const auto rows = std::max<int64_t>(1, (tokens + row - 1) / row), ranks = request.num_ranks;
  auto& train = draft.config.train;
  train.epochs = request.epochs > 0 ? request.epochs : facts.all_rows ? 3 : 1;
  draft.chose("train.epochs");
  const auto batch = facts.all_rows ? std::min(kMostRows, rows / kStepsOfEpoch) : kMostRows;
  train.global_batch = std::max<int64_t>(1, batch / ranks) * ranks;
  draft.chose("train.global_batch", facts.all_rows ? fmt::format("of about {} rows", rows)
                                                   : "of more rows than were counted");
  train.micro_batch = 1;
  draft.chose("train.micro_batch");
  const double steps =
      train.epochs * static_cast<double>(rows) / static_cast<double>(train.global_batch);
  draft.config.schedule.warmup_steps = std::min(kMostWarmup, static_cast<int64_t>(steps / 10));
  draft.chose("schedule.warmup_steps");
}

void choose_rest(const FinetuneRequest& request, const DataFacts& facts, const Decision& decision,
                 Draft& draft) {
  auto& config = draft.config;
  config.precision.compute = FloatType::bf16;
  draft.chose("precision.compute");
  config.memory.checkpointing = decision.found.checkpointing;
  draft.chose("memory.checkpointing",
              fmt::format("{} of {} a rank", format_bytes(std::llround(decision.found.bytes)),
                          format_bytes(std::llround(request.memory_bytes))));
  config.checkpoint.keep_last = 1;
  draft.chose("checkpoint.keep_last");
  config.train.run_dir = request.run_dir;
  draft.chose("train.run_dir");
  config.train.validate_on_start = true;
  draft.chose("train.validate_on_start", "what it knew before");
  config.train.sample_tokens = 0;
  draft.chose("train.sample_tokens");
  if (facts.shape == data::RowShape::text) return;  // nothing that could be answered
  config.train.sample_answers = 3;
  draft.chose("train.sample_answers", "before and after");
}

[[noreturn]] void refuse(const FinetuneRequest& request, const std::vector<MethodMemory>& memory,
                         int64_t wanted) {
  const auto asked = request.methods.back();
  std::string others;
  for (const auto& [method, bytes, longest] : memory) {
    if (longest == 0 || (method == asked && longest >= wanted)) continue;
    others += fmt::format("; with --{} rows of {} tokens fit", name_of(method), longest);
  }
  const auto& needed = *std::ranges::find(memory, asked, &MethodMemory::method);
  user_error(
      "finetune: --{} needs {} a rank for rows of {} tokens, and has {}{}; take a smaller model or "
      "more ranks (-n), or say with --memory what a rank may have",
      name_of(asked), format_bytes(std::llround(needed.bytes)), wanted,
      format_bytes(std::llround(request.memory_bytes)), others);
}

}  // namespace

const char* name_of(Method method) {
  switch (method) {
    case Method::lora:
      return "lora";
    case Method::qlora:
      return "qlora";
    case Method::full:
      return "full";
  }
  __builtin_unreachable();
}

FinetuneJob make_finetune_job(const FinetuneRequest& request, const models::ModelShape& shape,
                              const DataFacts& facts) {
  const Trial trial(request, shape, facts);
  const int64_t wanted = request.seq_len > 0 ? request.seq_len : wanted_row(facts, shape);
  const auto decision = decide(request, trial, wanted);
  FinetuneJob job;
  for (const auto method : {Method::full, Method::lora, Method::qlora}) {
    job.memory.push_back(trial.memory_of(method, decision ? decision->row : wanted));
  }
  if (!decision) refuse(request, job.memory, wanted);
  Draft draft;
  draft.config.model.path = request.model;
  draft.config.model.init = models::Init::pretrained;
  draft.chose("model.path");
  draft.chose("model.init");
  choose_method(decision->method, is_pairs(facts), draft);
  choose_data(request, facts, decision->row, draft);
  choose_lengths(request, facts, decision->row, draft);
  choose_ranks(request, draft);
  choose_rest(request, facts, *decision, draft);
  draft.apply(request.overrides);
  job.method = decision->method;
  job.config = draft.config;
  job.keys = draft.take_keys();
  return job;
}

std::string job_yaml(const FinetuneJob& job) {
  std::string yaml;
  for (const auto& section : config::sections()) {
    std::string lines;
    for (const auto& field : section.fields) {
      const auto chosen =
          std::ranges::find(job.keys, field.key, &std::pair<std::string, std::string>::first);
      if (chosen == job.keys.end()) continue;
      const auto line = fmt::format("  {}: {}", field.key.substr(section.name.size() + 1),
                                    config::yaml_value(field, job.config));
      lines += chosen->second.empty() ? line + "\n"
                                      : fmt::format("{:<36}  # {}\n", line, chosen->second);
    }
    if (!lines.empty()) yaml += section.name + ":\n" + lines;
  }
  return yaml;
}

}  // namespace tessera::cli
