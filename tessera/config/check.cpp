#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/config/fields.h"
#include "tessera/config/needs.h"
#include "tessera/config/place.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

/// The names of a mapping.
void append_names(const Slot& slot, std::vector<std::string>& texts) {
  const auto append = [&](const auto& patterns) {
    for (const auto& [name, value] : patterns) texts.push_back(name);
  };
  if (const auto* ranks = std::get_if<models::Patterns<int64_t>*>(&slot)) append(**ranks);
  if (const auto* alphas = std::get_if<models::Patterns<double>*>(&slot)) append(**alphas);
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
      append_names(slot, texts);
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

void check_quantised(const RunConfig& config, const Place& place) {
  const auto& model = config.model;
  if (model.weights == WeightFormat::as_stored) return;
  if (!has_adapter(config)) {
    place.error("model.weights",
                "weights in {} are not trained; set adapter.type lora to train "
                "matrices beside them, or model.weights as_stored",
                text_of(model.weights));
  }
  if (!std::has_single_bit(static_cast<uint64_t>(model.weights_block))) {
    place.error("model.weights_block", "expected a power of two, got {}", model.weights_block);
  }
}

void check_adapter(const AdapterSection& adapter, const Place& place) {
  std::set<std::filesystem::path> folders;
  for (const auto& folder : adapter.base) {
    if (folders.insert((std::filesystem::path(folder) / "").lexically_normal()).second) continue;
    place.error("adapter.base", "expected each adapter once, got '{}' twice; remove one",
                printable(folder));
  }
}

void check_model(const RunConfig& config, const Place& place) {
  const auto& model = config.model;
  check_quantised(config, place);
  if (model.init == models::Init::pretrained) {
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
  auto shape = models::model_preset(model.preset);
  if (const auto problem = override_shape(model, shape)) {
    place.error("model." + problem->field, "{}", problem->message);
  }
  if (const auto longest = models::longest_sequence(shape);
      longest && config.data.seq_len > *longest) {
    place.error("data.seq_len", "expected at most {}, the positions of model.preset {}, got {}",
                *longest, model.preset, config.data.seq_len);
  }
}

void check_preference(const RunConfig& config, const Place& place) {
  const auto& data = config.data;
  const bool has_pairs = data.shape == data::RowShape::preference;
  if (config.preference.loss == train::PreferenceLoss::none) {
    if (!has_pairs) return;
    place.error("data.shape",
                "preference needs a loss over pairs; set preference.loss to sigmoid, ipo or orpo");
  }
  if (!has_pairs && data.shape != data::RowShape::automatic) {
    place.error("data.shape",
                "expected preference, or auto, which preference.loss {} needs, got {}",
                text_of(config.preference.loss), text_of(data.shape));
  }
  if (data.learn == data::Learn::all) {
    place.error("data.learn",
                "all: preference.loss {} compares answers, without their prompts; set assistant, "
                "last or marked",
                text_of(config.preference.loss));
  }
  if (config.model.dropout > 0) {
    place.error("model.dropout",
                "expected 0 with preference.loss {}, whose reference drops nothing, got {}",
                text_of(config.preference.loss), config.model.dropout);
  }
}

void check_reshard(const RunConfig& config, const mesh::MeshShape& mesh, const Place& place) {
  const auto* k = std::get_if<int>(&config.parallel.reshard_after_forward);
  if (k != nullptr && mesh.dp_shard % *k != 0) {
    place.error("parallel.reshard_after_forward",
                "expected true, false or a divisor of the {} ranks of dp_shard, got {}",
                mesh.dp_shard, *k);
  }
}

void check_expert_parallel(const RunConfig& config, const mesh::MeshShape& mesh,
                           const Place& place) {
  if (mesh.ep == 1 && mesh.etp == 0) return;
  const auto& parallel = config.parallel;
  if (config.model.path.empty()) {  // of a path the ranks see to it
    auto shape = models::model_preset(config.model.preset);
    override_shape(config.model, shape);
    if (const auto problem = experts_problem(shape, mesh)) {
      place.error(problem->key, "{}", problem->message);
    }
  }
  if (!mesh.experts_apart()) return;
  const auto apart = mesh.ep > 1 ? fmt::format("parallel.ep {}", mesh.ep)
                                 : fmt::format("parallel.etp {}", mesh.etp);
  const char* unset = mesh.ep > 1 ? "parallel.ep to 1" : "parallel.etp to null";
  if (std::holds_alternative<int>(parallel.reshard_after_forward)) {
    place.error("parallel.reshard_after_forward",
                "expected true or false beside {}, whose experts other ranks share than the rest",
                apart);
  }
  if (config.precision.matmul == Matmul::fp8_delayed) {
    place.error(
        "precision.matmul",
        "fp8_delayed has scales for each layer on every rank, and with {} ranks have other experts "
        "or tokens; set fp8_tensor, or {}",
        apart, unset);
  }
  if (parallel.sync_module_states) {
    place.error("parallel.sync_module_states",
                "rank 0 has not the experts of all ranks; set it to false, or {}", unset);
  }
}

void check_tensor_parallel(const RunConfig& config, int64_t tp, const Place& place) {
  if (config.model.path.empty()) {  // of a path the ranks see to it
    auto shape = models::model_preset(config.model.preset);
    override_shape(config.model, shape);
    if (const auto problem = models::division_problem(shape, tp)) {
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
  const auto sizes = mesh_shape(config.parallel, ranks);
  if (const auto* problem = std::get_if<KeyProblem>(&sizes)) {
    place.error(problem->key, "{}", problem->message);
  }
  const auto& mesh = std::get<mesh::MeshShape>(sizes);
  check_reshard(config, mesh, place);
  check_tensor_parallel(config, mesh.tp, place);
  check_expert_parallel(config, mesh, place);
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

/// What train.epochs comes to is known once the data are open: then the ranks see to it.
void check_units(const RunConfig& config, const Place& place) {
  if (config.parallel.units == parallel::Units::name && config.parallel.unit_patterns.empty()) {
    place.error("parallel.unit_patterns", "expected at least one, such as [model.layers.*]");
  }
}

void check_schedule(const RunConfig& config, const Place& place) {
  if (config.train.epochs > 0) return;
  const auto steps = config.train.steps;
  const auto problem =
      schedule_problem(config.schedule, steps, fmt::format("train.steps {}", steps));
  if (problem) place.error(problem->key, "{}", problem->message);
  if (config.logging.profile_step > steps) {
    place.error("logging.profile_step", "expected at most train.steps {}, got {}", steps,
                config.logging.profile_step);
  }
}

void check_weights(const DataSection& data, const Place& place) {
  if (data.weights.empty() || (data.weights.size() == data.train.size() && data.train.size() > 1))
    return;
  place.error("data.weights",
              "expected one for each entry of data.train, at least two, got {} for {}",
              data.weights.size(), data.train.size());
}

/// What the file would ask for without the command line, as far as can be told: its own values of
/// keys that an option replaced are not known.
RunConfig without_command_line(RunConfig config, const Origins& origins) {
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      const auto origin = origins.find(field.key);
      if (origin == origins.end() || origin->second != kCommandLine) continue;
      copy_field(field, RunConfig{}, config);
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

/// Slices come whole for a gather and for their update, and first values go to where they stay.
void check_parameters_on_drives(const RunConfig& config, const Place& place) {
  const auto& section = config.parallel;
  if (section.offload_params != parallel::OffloadParams::nvme) return;
  const auto needs = [&](bool fulfilled, std::string_view what) {
    if (fulfilled) return;
    place.error("parallel.offload_params",
                "nvme: expected {}; set it, or parallel.offload_params to false", what);
  };
  needs(section.placement == parallel::Placement::full_shard, "parallel.placement full_shard");
  needs(offloads_to_drives(config), "parallel.offload_optimizer nvme");
  needs(config.optimizer.type != optim::OptimizerType::muon,
        "an optimizer.type other than muon, whose matrices are whole");
  needs(!section.sync_module_states, "parallel.sync_module_states false");
}

void check_offload(const RunConfig& config, const Place& place) {
  constexpr int64_t kPageKib = 4;
  if (const auto block = config.offload.block_size; block % kPageKib != 0) {
    place.error("offload.block_size", "expected a multiple of {} KiB, got {}", kPageKib, block);
  }
  if (offloads_to_drives(config) && config.optimizer.type == optim::OptimizerType::sgd &&
      config.optimizer.momentum == 0) {
    place.error("parallel.offload_optimizer",
                "nvme: sgd without momentum keeps no states; set optimizer.momentum above 0, or "
                "parallel.offload_optimizer to false");
  }
  check_parameters_on_drives(config, place);
}

void check_in_backward(const RunConfig& config, const Place& place) {
  if (!config.optimizer.in_backward) return;
  if (config.optimizer.max_grad_norm > 0) {
    place.error(
        "optimizer.in_backward",
        "weights are updated before the norm of all gradients is known, so they cannot be clipped "
        "by it; set optimizer.max_grad_norm to 0, or optimizer.in_backward to false");
  }
  if (config.parallel.num_ranks < 1) return;
  const auto problem =
      in_backward_problem(config, fitting_mesh(config.parallel, config.parallel.num_ranks));
  if (problem) place.error(problem->key, "{}", problem->message);
}

}  // namespace

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
  check_adapter(config.adapter, place);
  check_preference(config, place);
  check_ranks(config, place);
  check_schedule(config, place);
  check_weights(config.data, place);
  check_precision(config, place);
  check_units(config, place);
  check_effect(config, origins, place);
  check_optimizer_states(config, place);
  check_fp8_storage(config, place);
  check_moe(config, place);
  check_offload(config, place);
  check_in_backward(config, place);
}

}  // namespace tessera::config
