#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/fields.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

/// Raises errors about a key with the place where its value was written.
class Place {
 public:
  explicit Place(const Origins& origins) : origins_(origins) {}

  template <typename... Args>
  [[noreturn]] void error(const std::string& key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    throw UserError(prefix(key) + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string prefix(const std::string& key) const {
    const auto found = origins_.find(key);
    if (found == origins_.end() || found->second == "default") return key;
    return found->second == kCommandLine ? "--" + key : found->second + ": " + key;
  }

  const Origins& origins_;
};

bool is_default(const Field& field, const RunConfig& config) {
  return yaml_value(field, config) == yaml_value(field, RunConfig{});
}

/// A job file and what is saved of it are UTF-8, so its texts must be.
void check_texts(const RunConfig& config, const Place& place) {
  auto copy = config;  // slots are for writing, too
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto slot = field.slot(copy);
      std::vector<std::string> texts;
      if (const auto* text = std::get_if<std::string*>(&slot)) texts = {**text};
      if (const auto* list = std::get_if<std::vector<std::string>*>(&slot)) texts = **list;
      for (const auto& text : texts) {
        if (is_utf8(text)) continue;
        place.error(field.key, "expected text in UTF-8, got '{}'; rename the file or folder",
                    printable(text));
      }
    }
  }
  if (config.train.run_dir.empty()) {
    place.error("train.run_dir", "expected a folder, got ''; set one, as runs/first");
  }
}

void check_model(const RunConfig& config, const Place& place) {
  const auto& model = config.model;
  if (model.init == "pretrained") {
    if (model.path.empty()) {
      place.error(
          "model.init",
          "'pretrained' needs weights to read; set model.path to a folder with config.json and "
          "*.safetensors");
    }
    for (const auto* key : {"model.vocab_size", "model.num_layers", "model.dim", "model.ffn_dim",
                            "model.num_heads", "model.num_kv_heads", "model.tie_embeddings"}) {
      if (is_default(*find_field(key), config)) continue;
      place.error(key,
                  "the shape of pretrained weights cannot be changed; remove it, or set model.init "
                  "to random");
    }
  }
  if (!model.path.empty()) return;
  auto shape = model_preset(model.preset);
  if (const auto problem = override_shape(model, shape)) {
    place.error("model." + problem->field, "{}", problem->message);
  }
  if (shape.family == ModelFamily::gpt2 && config.data.seq_len > shape.max_seq_len) {
    place.error("data.seq_len", "expected at most {}, the positions of model.preset {}, got {}",
                shape.max_seq_len, model.preset, config.data.seq_len);
  }
}

void check_reshard(const RunConfig& config, const MeshSizes& mesh, const Place& place) {
  const auto& text = config.parallel.reshard_after_forward;
  if (text == "true" || text == "false") return;
  int64_t k = 0;
  const auto end = text.data() + text.size();
  if (std::from_chars(text.data(), end, k).ptr != end || k < 1 || mesh.dp_shard % k != 0) {
    place.error("parallel.reshard_after_forward",
                "expected true, false or a divisor of the {} ranks of dp_shard, got {}",
                mesh.dp_shard, text);
  }
}

void check_tensor_parallel(const RunConfig& config, int64_t tp, const Place& place) {
  if (config.model.path.empty()) {  // of a path the ranks see to it
    auto shape = model_preset(config.model.preset);
    override_shape(config.model, shape);
    if (const auto problem = division_problem(shape, tp)) {
      place.error("parallel.tp", "{}", *problem);
    }
  }
  const auto seq_len = config.data.seq_len;
  if (tp > 1 && config.parallel.sequence_parallel && seq_len % tp != 0) {
    place.error("data.seq_len",
                "expected a multiple of parallel.tp {}, got {}; set {}, or "
                "parallel.sequence_parallel to false",
                tp, seq_len, std::max<int64_t>(1, seq_len / tp) * tp);
  }
}

void check_ranks(const RunConfig& config, const Place& place) {
  const auto ranks = config.parallel.num_ranks;
  const auto& train = config.train;
  if (ranks < 1) return;
  const auto sizes = mesh_sizes(config.parallel, ranks);
  if (const auto* problem = std::get_if<MeshProblem>(&sizes)) {
    place.error(problem->key, "{}", problem->message);
  }
  const auto& mesh = std::get<MeshSizes>(sizes);
  check_reshard(config, mesh, place);
  check_tensor_parallel(config, mesh.tp, place);
  const auto data_ranks = mesh.data_ranks();
  if (train.global_batch % data_ranks != 0) {
    place.error("train.global_batch",
                "{} sequences cannot be divided over {} {}ranks; set a multiple of {}",
                train.global_batch, data_ranks, data_ranks == ranks ? "" : "data ", data_ranks);
  }
  const auto share = train.global_batch / data_ranks;
  if (train.micro_batch > 0 && share % train.micro_batch != 0) {
    place.error("train.micro_batch",
                "expected 0 or a divisor of {}, each rank's share of train.global_batch {}, got {}",
                share, train.global_batch, train.micro_batch);
  }
}

void check_schedule(const RunConfig& config, const Place& place) {
  const auto& schedule = config.schedule;
  const auto steps = config.train.steps;
  if (schedule.warmup_steps > steps) {
    place.error("schedule.warmup_steps", "expected at most train.steps {}, got {}", steps,
                schedule.warmup_steps);
  }
  if (schedule.type == "wsd" && schedule.decay_steps > steps - schedule.warmup_steps) {
    place.error("schedule.decay_steps",
                "expected at most {} (train.steps {} less {} of warm-up), got {}",
                steps - schedule.warmup_steps, steps, schedule.warmup_steps, schedule.decay_steps);
  }
}

/// What the file would ask for without the command line, as far as can be told: its own values of
/// keys that an option replaced are not known.
RunConfig without_command_line(RunConfig config, const Origins& origins) {
  RunConfig defaults;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto origin = origins.find(field.key);
      if (origin == origins.end() || origin->second != kCommandLine) continue;
      std::visit([&](auto* value) { *value = *std::get<decltype(value)>(field.slot(defaults)); },
                 field.slot(config));
    }
  }
  return config;
}

/// A setting that cannot take effect is an error, never ignored. Values are compared, not origins:
/// a printed configuration names every key and must be accepted again. But an option may make moot
/// what stands in the file: a recipe that keeps two checkpoints runs with none saved.
void check_effect(const RunConfig& config, const Origins& origins, const Place& place) {
  const auto file = without_command_line(config, origins);
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto needed = is_default(field, config) ? "" : needed_for_effect(field.key, config);
      if (needed.empty()) continue;
      const auto origin = origins.find(field.key);
      const bool in_file = origin != origins.end() && origin->second != kCommandLine;
      if (in_file && needed_for_effect(field.key, file).empty()) continue;
      place.error(field.key, "has no effect here: it needs {}; remove one of them", needed);
    }
  }
}

void check_precision(const RunConfig& config, const Place& place) {
  const auto& precision = config.precision;
  if (precision.parameters == "bf16" && precision.compute != "bf16") {
    place.error("precision.parameters",
                "bf16 parameters compute in bf16; set precision.compute to bf16, or this to fp32");
  }
  if (precision.parameters == "bf16" && precision.autocast) {
    place.error("precision.autocast",
                "bf16 parameters need no cast; remove it, or set precision.parameters to fp32");
  }
  if (precision.autocast && precision.reduce != "fp32") {
    place.error("precision.reduce", "under autocast gradients are fp32 like the weights; got {}",
                precision.reduce);
  }
  if (precision.reduce != "fp32" && precision.reduce != precision.compute) {
    place.error("precision.reduce", "expected fp32 or precision.compute {}, got {}",
                precision.compute, precision.reduce);
  }
  if (config.parallel.units == "name" && config.parallel.unit_patterns.empty()) {
    place.error("parallel.unit_patterns", "expected at least one, such as [model.layers.*]");
  }
}

}  // namespace

std::variant<MeshSizes, MeshProblem> mesh_sizes(const ParallelSection& parallel,
                                                int64_t num_ranks) {
  const bool sharded = parallel.placement != "replicate";
  if (!sharded && parallel.dp_shard > 1) {
    return MeshProblem{"parallel.dp_shard",
                       fmt::format("{} ranks cannot share a model that is replicated; remove it, "
                                   "or set parallel.placement to full_shard",
                                   parallel.dp_shard)};
  }
  // The dimensions that the user left open, -1, but for the one that takes all that is left.
  MeshSizes sizes{parallel.pp, parallel.dp_replicate, sharded ? parallel.dp_shard : 1, parallel.tp};
  auto& rest = sizes.tp == -1                    ? sizes.tp
               : sizes.pp == -1                  ? sizes.pp
               : sharded && sizes.dp_shard == -1 ? sizes.dp_shard
               : sizes.dp_replicate == -1        ? sizes.dp_replicate
                                                 : sizes.tp;
  struct Dimension {
    const char* key;
    int64_t& size;
  };
  const Dimension dimensions[] = {{"parallel.pp", sizes.pp},
                                  {"parallel.dp_replicate", sizes.dp_replicate},
                                  {"parallel.dp_shard", sizes.dp_shard},
                                  {"parallel.tp", sizes.tp}};
  const bool open = rest == -1;
  int64_t others = 1;
  for (const auto& [key, size] : dimensions) {
    if (&size == &rest) continue;
    if (size == -1) size = 1;
    others *= size;
  }
  if (open) rest = std::max<int64_t>(1, num_ranks / others);
  const int64_t product = others * rest;
  if (product == num_ranks) return sizes;

  // The key to blame is the last that the user set, if the others leave it room.
  for (size_t i = std::size(dimensions); i-- > 0;) {
    const auto& [key, size] = dimensions[i];
    if (size == 1 || (open && &size == &rest)) continue;
    const int64_t fixed = (open ? others : product) / size, room = num_ranks / fixed;
    if (num_ranks % fixed != 0) continue;
    int64_t fitting = room;  // where a dimension is open, any divisor will do
    for (int64_t d = 1; open && d <= room; ++d) {
      if (room % d == 0 && std::abs(d - size) < std::abs(fitting - size)) fitting = d;
    }
    return MeshProblem{key, fmt::format("the mesh has {} ranks but the run has {}; set {} or -1",
                                        product, num_ranks, fitting)};
  }
  const int64_t below = num_ranks / product * product;
  return MeshProblem{
      sizes.tp > 1 ? "parallel.tp" : "parallel.dp_shard",
      fmt::format("{}dp_replicate {} x dp_shard {} x tp {} make {} ranks but the run has {}; start "
                  "{}{}, or change a size",
                  sizes.pp > 1 ? fmt::format("pp {} x ", sizes.pp) : "", sizes.dp_replicate,
                  sizes.dp_shard, sizes.tp, product, num_ranks,
                  below > 0 ? fmt::format("{} or ", below) : "", below + product)};
}

MeshSizes fitting_mesh(const ParallelSection& parallel, int64_t num_ranks) {
  const auto sizes = mesh_sizes(parallel, num_ranks);
  if (const auto* problem = std::get_if<MeshProblem>(&sizes)) {
    user_error("{}: {}", problem->key, problem->message);
  }
  return std::get<MeshSizes>(sizes);
}

int64_t num_micro_batches(const RunConfig& config, const MeshSizes& mesh) {
  const int64_t share = config.train.global_batch / mesh.data_ranks();
  const int64_t size = config.train.micro_batch > 0 ? config.train.micro_batch
                       : mesh.pp > 1                ? 1
                                                    : share;
  return share / size;
}

std::string needed_for_effect(const std::string& key, const RunConfig& config) {
  for (const auto& need : find_field(key)->needs) {
    if (!need.met(config)) return need.what;
  }
  return "";
}

void check(const RunConfig& config, const Origins& origins) {
  const Place place(origins);
  if (config.data.train.empty()) {
    place.error(
        "data.train",
        "expected at least one file or folder, got none; set data.train, or --data.train=PATH");
  }
  check_texts(config, place);
  check_model(config, place);
  check_ranks(config, place);
  check_schedule(config, place);
  check_precision(config, place);
  check_effect(config, origins, place);
}

}  // namespace tessera::config
