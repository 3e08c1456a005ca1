// tessera estimate-memory: what a model takes to load and to train, before anything runs. The first
// table is Accelerate's.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/nearest.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/cli/adapter_run.h"
#include "tessera/cli/bytes_option.h"
#include "tessera/cli/choices.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/worker_program.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"
#include "tessera/estimate/architecture.h"
#include "tessera/estimate/known_models.h"
#include "tessera/estimate/table.h"
#include "tessera/hub/repository_name.h"
#include "tessera/hub/resolve.h"
#include "tessera/models/json_keys.h"
#include "tessera/predict/fit.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using namespace estimate;

constexpr const char* kCommand = "estimate-memory";
constexpr const char* kEstimateFooter =
    R"(The first table is that of Accelerate, the second its phases of one step. The third is of one rank of tessera train,
for every family that it trains; docs/estimates.md has its formulas. All settings of a run: --job.
Examples:
  tessera estimate-memory bert-base-cased
  tessera estimate-memory meta-llama/Meta-Llama-3-8B --dtypes float32 float16 --ranks 8 --placement full_shard \
      --precision bf16 --seq-len 4096 --checkpointing selective --device-memory 80GB
  tessera estimate-memory llama-3-70b --ranks 64 --tp 8 --pp 4 --precision bf16 --seq-len 8192 --device-memory 80GB
  tessera estimate-memory --job recipes/tiny_llama.yaml)";

/// Options of one rank's part, each with the key of a job file that it sets.
struct RankOption {
  const char* name;
  const char* key;
  const char* meaning;
};
const RankOption kRankOptions[] = {
    {"--batch-size", "train.micro_batch", "Sequences that a rank takes at once; 1 unless given"},
    {"--seq-len", "data.seq_len", "Tokens of a sequence; at most 512 unless given"},
    {"--precision", "precision.compute", "Of computation; fp32 unless given"},
    {"--placement", "parallel.placement", "What each rank keeps; replicate unless given"},
    {"--ranks", "parallel.num_ranks", "1 unless given"},
    {"--tp", "parallel.tp", "Ranks that divide each matrix; 1 unless given"},
    {"--pp", "parallel.pp", "Ranks of a pipeline, four micro-batches each; 1 unless given"},
    {"--ep", "parallel.ep", "Ranks that share out the experts of a mixture; 1 unless given"},
    {"--etp", "parallel.etp", "Of --tp, the ranks that divide each expert; all unless given"},
    {"--checkpointing", "memory.checkpointing", "Of activations; none unless given"},
    {"--optimizer", "optimizer.type", "adamw unless given"}};

struct EstimateArguments {
  std::string model, job, library, transformers;
  std::vector<std::string> dtypes = load_dtype_names();
  std::vector<std::pair<const RankOption*, std::string>> rank_settings;  ///< as given
  std::string offload;
  std::string device_memory;
  bool json = false;
};

/// What MODEL turned out to be.
struct Model {
  std::string name;
  Module modules;
  std::optional<models::ModelShape> shape;
  std::optional<Version> old_rotary_version;
  std::string why_no_shape;
};

std::optional<Version> asked_version(const std::string& text) {
  if (text.empty()) return {};
  const auto version = parse_version(text);
  if (!version) {
    user_error("{}: --transformers: expected a version such as 4.40 or 5.0, got '{}'", kCommand,
               text);
  }
  return version;
}

Model from_config(const std::string& name, const nlohmann::json& config, const std::string& where,
                  std::optional<Version> version) {
  auto architecture = architecture_of(config, where, version);
  return {.name = name,
          .modules = std::move(architecture.modules),
          .shape = architecture.shape,
          .old_rotary_version = architecture.old_rotary_version,
          .why_no_shape = "no formula for activations of " + architecture.type};
}

/// The model as the headers of its stored tensors show it: no values are read.
Model from_tensors(const std::string& name, const fs::path& path) {
  constexpr int64_t kFloat = 4;
  const checkpoint::Safetensors source(path);
  std::vector<std::pair<std::string, int64_t>> tensors;
  for (const auto& [tensor, info] : source.tensors()) {
    const bool is_float = checkpoint::is_float(info.dtype);
    tensors.emplace_back(tensor, is_float ? kFloat * info.num_elements() : info.num_bytes());
  }
  return {.name = name,
          .modules = modules_of_tensors(tensors),
          .why_no_shape = "stored tensors do not say how they are used; give the config.json"};
}

Model from_path(const std::string& name, const fs::path& path, std::optional<Version> version) {
  const auto config = fs::is_directory(path) ? path / "config.json" : path;
  if (config.extension() == ".json" && !path.string().ends_with(".index.json") &&
      fs::exists(config)) {
    return from_config(name, models::read_json_object(config, "model_type"), config.string(),
                       version);
  }
  if (fs::is_directory(path) && !checkpoint::is_safetensors(path)) {
    user_error("{}: MODEL: expected config.json or *.safetensors in {}, found neither", kCommand,
               path.string());
  }
  return from_tensors(name, path);
}

Model find_model(const std::string& name, std::optional<Version> version) {
  if (fs::exists(name)) return from_path(name, name, version);
  if (const auto config = known_config(name)) return from_config(name, *config, name, version);
  if (!hub::parse_repository_name(name)) {
    auto names = known_model_names();
    for (size_t i = names.size(); i-- > 0;)
      names.push_back(names[i].substr(names[i].find('/') + 1));  // the owner may be left out
    user_error(
        "{}: MODEL: expected a preset, a model's name, a folder, a config.json or a .safetensors, "
        "got '{}'{}",
        kCommand, name, did_you_mean(name, names));
  }
  const auto folder = hub::resolve(name, {.weights = false, .on_notice = [](const auto& line) {
                                            fmt::print(stderr, "{}\n", line);
                                          }});
  return from_path(name, folder, version);
}

Model model_of_job(const config::RunConfig& job) {
  auto section = job.model;
  if (!section.path.empty()) section.path = hub::resolve(section.path, {.weights = false}).string();
  const auto shape = config::resolve_model_shape(section);
  return {.name = job.model.path.empty() ? job.model.preset : job.model.path,
          .modules = architecture_of(shape).modules,
          .shape = shape};
}

void apply(const std::string& option, const std::string& key, const std::string& value,
           config::RunConfig& config) {
  config::set_field(*config::find_field(key),
                    {.kind = config::RawValue::Kind::scalar, .text = value},
                    fmt::format("{}: {}", kCommand, option), config);
}

void apply_offload(const std::string& what, config::RunConfig& config) {
  const std::vector<std::string> words{"none", "optimizer", "params", "nvme", "all_nvme"};
  if (std::ranges::count(words, what) == 0) {
    user_error("{}: --offload: expected {}, got '{}'{}", kCommand, fmt::join(words, ", "), what,
               did_you_mean(what, words));
  }
  using parallel::OffloadOptimizer, parallel::OffloadParams;
  config.parallel.offload_optimizer = what == "optimizer"      ? OffloadOptimizer::host
                                      : what.ends_with("nvme") ? OffloadOptimizer::nvme
                                                               : OffloadOptimizer::none;
  config.parallel.offload_params = what == "params"     ? OffloadParams::host
                                   : what == "all_nvme" ? OffloadParams::nvme
                                                        : OffloadParams::none;
}

/// Micro-batches of a step, over all ranks: one for each data rank, or in a pipeline so many that
/// it is not idle for long.
int64_t num_shares(const config::ParallelSection& parallel) {
  const auto mesh = config::mesh_shape(parallel, parallel.num_ranks);
  const auto* sizes = std::get_if<mesh::MeshShape>(&mesh);
  if (sizes == nullptr) return parallel.num_ranks;  // the check says what is wrong
  return sizes->data_ranks() * (sizes->pp > 1 ? 4 * sizes->pp : 1);
}

/// The run whose ranks are asked for: the job's, or one micro-batch a step, with the options given.
config::RunConfig run_of(const EstimateArguments& arguments, const models::ModelShape& shape,
                         const std::optional<config::RunConfig>& job) {
  const auto longest = models::longest_sequence(shape).value_or(512);
  auto config = job.value_or(config::RunConfig{});
  if (!job) config.data.seq_len = std::min<int64_t>(longest, 512), config.train.micro_batch = 1;
  for (const auto& [option, value] : arguments.rank_settings)
    apply(option->name, option->key, value, config);
  if (!arguments.offload.empty()) apply_offload(arguments.offload, config);
  auto& ranks = config.parallel.num_ranks;
  if (ranks == -1) ranks = std::max<int64_t>(1, this_machine().num_cores / 2);
  if (!job) {
    constexpr int64_t kMost = 1'000'000'000;
    if (const auto size = config.train.micro_batch; size == 0 || size > kMost) {
      user_error("{}: --batch-size: expected a whole number from 1 to {}, got {}", kCommand, kMost,
                 size);
    }
    config.train.global_batch = config.train.micro_batch * num_shares(config.parallel);
    config.model.path = "any";  // MODEL; whether ranks can divide its heads is seen below
  }
  // A run has data; how much a rank takes does not depend on it.
  if (config.data.train.empty()) config.data.train = {"any"};
  config::Origins origins;
  for (const auto& [option, value] : arguments.rank_settings) origins[option->key] = option->name;
  if (!arguments.offload.empty()) {
    origins["parallel.offload_optimizer"] = origins["parallel.offload_params"] = "--offload";
  }
  config::check(config, origins);
  return config;
}

/// Bytes are counted in 64 bits: a slip in a number must not come out as a negative peak.
void check_countable(const config::RunConfig& config, const models::ModelShape& shape) {
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const auto& train = config.train;
  const auto batch = train.micro_batch > 0 ? train.micro_batch : train.global_batch;
  const double tokens = real(batch) * real(config.data.seq_len);
  const double widths = real(shape.num_layers) * real(shape.dim + shape.ffn_dim);
  constexpr double kBytes = 64;  // more than any tensor's share of a number kept for a token
  if (tokens * kBytes * (widths + real(shape.vocab_size)) < 0x1p62) return;
  user_error("{}: {} sequences of {} tokens at once take more bytes than can be counted; set fewer",
             kCommand, batch, config.data.seq_len);
}

struct Limit {
  std::string name;
  double bytes = 0;
  predict::Device device;
};

Limit limit_of(const EstimateArguments& arguments, int64_t num_ranks) {
  if (!arguments.device_memory.empty())
    return {
        "the device", bytes_of(arguments.device_memory, "estimate-memory: --device-memory"), {}};
  const auto machine = this_machine();
  return {
      num_ranks == 1 ? "this machine" : fmt::format("this machine, shared by {} ranks", num_ranks),
      static_cast<double>(machine.memory_bytes) / static_cast<double>(num_ranks),
      predict::this_cpu()};
}

/// Says which version of transformers was counted, where it matters.
std::string version_note(const Model& model, int64_t total) {
  if (!model.old_rotary_version) return "";
  const auto today = architecture_of(*model.shape).modules;
  return fmt::format(
      "counts the rotary tables that transformers {}.{} keeps in each "
      "layer; from 4.41 on there are none: {} instead of {} (--transformers 4.41)\n",
      model.old_rotary_version->major, model.old_rotary_version->minor,
      python_bytes(static_cast<double>(total_bytes(today)), true),
      python_bytes(static_cast<double>(total), true));
}

nlohmann::ordered_json classic_json(const Model& model, int64_t total, const LargestLayer& largest,
                                    const std::vector<LoadDtype>& dtypes) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const auto dtype : dtypes) {
    const auto divisor = static_cast<double>(divisor_of(dtype));
    Json row{{"dtype", name_of(dtype)},
             {"largest_layer_bytes", static_cast<double>(largest.bytes) / divisor},
             {"total_bytes", static_cast<double>(total) / divisor},
             {"training_bytes", nullptr}};
    if (trains_in(dtype)) {
      const auto phases = training_phases(total, dtype);
      row["training_bytes"] = phases.highest();
      row["phases"] = {{"model", phases.model},
                       {"gradients", phases.gradients},
                       {"backward", phases.backward},
                       {"step", phases.step},
                       {"highest", phases.highest()}};
    }
    rows.push_back(row);
  }
  return {{"model", model.name},
          {"total_bytes", total},
          {"largest_layer_bytes", largest.bytes},
          {"largest_layer", largest.name},
          {"dtypes", rows}};
}

void check_library(const std::string& library) {
  if (library.empty() || library == "transformers") return;
  user_error(
      "{}: --library_name: expected transformers, got '{}'; for models of others give their "
      ".safetensors",
      kCommand, library);
}

struct Rank {
  predict::RankEstimate estimate;
  std::string limit_name;
};

/// The estimate for one rank. None for a model that does not train here; a UserError if something
/// of a rank was asked for then.
std::optional<Rank> estimate_rank_of(const EstimateArguments& arguments, const Model& model,
                                     const std::optional<config::RunConfig>& job) {
  const bool asked = job || !arguments.rank_settings.empty() || !arguments.offload.empty() ||
                     !arguments.device_memory.empty();
  if (!model.shape && asked) {
    user_error("{}: {}: nothing is known of a rank's peak: {}", kCommand, model.name,
               model.why_no_shape);
  }
  if (!model.shape) return {};
  const auto config = with_stored_adapter(run_of(arguments, *model.shape, job), *model.shape);
  check_countable(config, *model.shape);
  if (const auto longest = models::longest_sequence(*model.shape);
      longest && config.data.seq_len > *longest) {
    user_error("{}: --seq-len: expected at most {} (the model's positions), got {}", kCommand,
               *longest, config.data.seq_len);
  }
  const auto limit = limit_of(arguments, config.parallel.num_ranks);
  return Rank{predict::estimate_rank(config, *model.shape, limit.device, limit.bytes), limit.name};
}

int run_estimate_memory(const EstimateArguments& arguments) {
  check_library(arguments.library);
  std::vector<LoadDtype> dtypes;
  for (const auto& name : arguments.dtypes) dtypes.push_back(parse_load_dtype(name));
  if (arguments.model.empty() == arguments.job.empty()) {
    user_error("{}: expected MODEL or --job, got {}", kCommand,
               arguments.model.empty() ? "neither" : "both; the job names its model");
  }
  std::optional<config::RunConfig> job;
  if (!arguments.job.empty()) job = config::load_run_config(job_file(arguments.job), {}).config;
  const auto model =
      job ? model_of_job(*job) : find_model(arguments.model, asked_version(arguments.transformers));
  const int64_t total = total_bytes(model.modules);
  const auto largest = largest_layer(model.modules);
  const auto rank = estimate_rank_of(arguments, model, job);
  if (arguments.json) {
    auto json = classic_json(model, total, largest, dtypes);
    json["rank"] = rank ? predict::rank_json(rank->estimate) : nlohmann::ordered_json();
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  fmt::print("{}{}{}", loading_table(model.name, total, largest.bytes, dtypes),
             phase_table(model.name, total, dtypes), version_note(model, total));
  if (rank) fmt::print("{}", predict::rank_text(rank->estimate, rank->limit_name));
  return 0;
}

}  // namespace

void add_estimate_memory(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<EstimateArguments>();
  auto* command = app.add_subcommand(
      kCommand, "Estimate what a model takes to load and to train, before anything runs");
  command->footer(kEstimateFooter);
  command->add_option("MODEL", arguments->model,
                      "Preset, model's name, folder, config.json or .safetensors");
  command->add_option("--dtypes", arguments->dtypes,
                      "Of the first two tables: float32, float16, int8, int4");
  command->add_option("--library_name,--library-name", arguments->library,
                      "transformers, as with Accelerate");
  command->add_option("--transformers", arguments->transformers,
                      "Count the modules of this version of transformers; unless given that which "
                      "wrote the config.json, or the newest");
  command->add_option(
      "--job", arguments->job,
      "Job file, or an installed recipe's name, whose model and settings are taken");
  for (const auto& option : kRankOptions) {
    auto* added = command->add_option_function<std::string>(
        option.name,
        [arguments, &option](const std::string& value) {
          arguments->rank_settings.emplace_back(&option, value);
        },
        option.meaning);
    if (const auto& words = config::find_field(option.key)->rule.choices; !words.empty())
      takes(added, words);
  }
  takes(command->add_option("--offload", arguments->offload,
                            "What waits on the host; nvme: the optimizer's states, on drives; "
                            "all_nvme: parameters, too"),
        {"none", "optimizer", "params", "nvme", "all_nvme"});
  command->add_option("--device-memory", arguments->device_memory,
                      "Of a GPU, such as 80GB; unless given, this machine's by the ranks on it");
  command->add_flag("--json", arguments->json, "As JSON, in bytes");
  command->callback([arguments, &exit_code] { exit_code = run_estimate_memory(*arguments); });
}

}  // namespace tessera::cli
