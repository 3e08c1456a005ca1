#include "tessera/checkpoint/formats/stored_adapter.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/checkpoint/formats/merge_adapter.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/checkpoint/held_matrices.h"
#include "tessera/models/adapter_json.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using models::AdaptedModule;
using models::AdapterType;

AdapterPart part_in(const fs::path& folder, const models::ModelShape& shape) {
  const auto adapter = std::make_shared<const PeftAdapter>(folder, shape);
  return {.spec = adapter->config().spec, .tensors = {adapter, &adapter->tensors()}};
}

/// A module and the adapters that it has.
struct Summed {
  AdaptedModule module;  ///< of the first of them
  int64_t rank = 0;      ///< of all
  std::vector<std::pair<const AdapterPart*, AdaptedModule>> parts;
};

std::map<std::string, Summed> modules_of(const std::vector<const AdapterPart*>& parts,
                                         const models::ModelShape& shape) {
  std::map<std::string, Summed> modules;
  for (const auto* part : parts) {
    for (const auto& module : models::adapted_modules(part->spec, shape)) {
      auto& summed = modules[module.path];
      if (summed.parts.empty()) summed.module = module;
      summed.rank += module.rank;
      summed.parts.emplace_back(part, module);
    }
  }
  return modules;
}

void refuse_what_has_no_sum(const std::vector<AdapterPart>& below, const AdapterPart& trained,
                            const std::map<std::string, Summed>& modules) {
  const auto refuse = [](const std::string& why) {
    user_error("{}, which no single adapter can say; merge it instead (tessera merge-adapter)",
               why);
  };
  for (const auto& part : below) {
    const auto where = part.tensors->path().string();
    if (part.spec.type == AdapterType::dora) refuse(where + ": DoRA below another adapter");
    if (!part.spec.modules_to_save.empty() || part.spec.bias != models::AdapterBias::none) {
      refuse(where + ": modules trained whole below another adapter");
    }
  }
  for (const auto& [path, summed] : modules) {
    if (trained.spec.type == AdapterType::dora && summed.parts.back().first != &trained) {
      refuse(path + " has an adapter below, and none of DoRA above it");
    }
    if (summed.rank > std::max(summed.module.inputs, summed.module.outputs)) {
      refuse(
          fmt::format("{}: ranks that add up to {}, more than its larger side", path, summed.rank));
    }
  }
}

/// A and B of all of a module's adapters.
void add_sum(const Summed& summed, HeldMatrices& held) {
  const auto& [whole, rank, parts] = summed;
  const std::string infix = whole.path + (whole.embedding ? ".lora_embedding_" : ".lora_");
  std::vector<float> a, b(static_cast<size_t>(whole.outputs * rank));
  int64_t column = 0;
  for (const auto& [part, module] : parts) {
    const auto part_a = floats_of(*part->tensors, infix + "A");
    const auto part_b = floats_of(*part->tensors, infix + "B");
    const double scale = part->subtracts ? -module.scale : module.scale;
    a.insert(a.end(), part_a.begin(), part_a.end());
    for (int64_t row = 0; row < module.outputs; ++row) {
      for (int64_t k = 0; k < module.rank; ++k) {
        b[static_cast<size_t>(row * rank + column + k)] =
            static_cast<float>(scale * part_b[static_cast<size_t>(row * module.rank + k)]);
      }
    }
    column += module.rank;
  }
  held.add(infix + "A", {rank, whole.inputs}, std::move(a));
  held.add(infix + "B", {whole.outputs, rank}, std::move(b));
}

}  // namespace

std::optional<StoredAdapter> stored_adapter(const TrainingSource& training,
                                            const fs::path& source) {
  auto base = base_weights_of(training.about.state);
  if (!base) return {};
  StoredAdapter found{.base = std::move(*base), .spec = {}, .initial = {}};
  found.spec = models::adapter_spec_of(found.base.adapter, source.string());
  if (found.spec.init == models::AdapterInit::pissa) {
    found.initial = (source / ".." / kInitialAdapter).lexically_normal();
  }
  return found;
}

std::vector<AdapterPart> parts_of_base(const StoredAdapter& stored,
                                       const models::ModelShape& shape) {
  std::vector<AdapterPart> parts;
  for (const auto& below : stored.base.adapters) parts.push_back(part_in(below.path, shape));
  if (!stored.initial.empty()) {
    if (!is_peft(stored.initial)) {
      user_error(
          "{}: expected the adapter that the run began with, which PiSSA took from its base; it "
          "stands beside the run's checkpoints and belongs to them",
          stored.initial.string());
    }
    parts.push_back(part_in(stored.initial, shape));
    parts.back().subtracts = true;
  }
  return parts;
}

std::shared_ptr<const TensorSource> with_parts(std::shared_ptr<const TensorSource> base,
                                               const std::vector<AdapterPart>& parts,
                                               const models::ModelShape& shape) {
  for (const auto& part : parts) {
    base = merged(base, part.tensors, part.spec, shape,
                  {.subtracts = part.subtracts, .dtype = DType::f32});
  }
  return base;
}

AdapterPart sum_of_adapters(const std::vector<AdapterPart>& below, const AdapterPart& trained,
                            const models::ModelShape& shape) {
  std::vector<const AdapterPart*> parts;
  for (const auto& part : below) parts.push_back(&part);
  parts.push_back(&trained);
  const auto modules = modules_of(parts, shape);
  refuse_what_has_no_sum(below, trained, modules);
  auto spec = trained.spec;
  spec.init = models::AdapterInit::kaiming, spec.pissa_iterations = 0, spec.rslora = false;
  spec.targets.clear(), spec.exclude.clear(), spec.layers.clear();
  spec.rank_pattern.clear(), spec.alpha_pattern.clear();
  spec.rank = 0;
  const auto sum = std::make_shared<HeldMatrices>(trained.tensors->path());
  for (const auto& [path, summed] : modules) {
    spec.targets.push_back(path);
    spec.rank = std::max(spec.rank, summed.rank);
    add_sum(summed, *sum);
  }
  spec.alpha = static_cast<double>(spec.rank);
  for (const auto& [path, summed] : modules) {
    if (summed.rank == spec.rank) continue;
    spec.rank_pattern.emplace_back(path, summed.rank);
    spec.alpha_pattern.emplace_back(path, static_cast<double>(summed.rank));
  }
  for (const auto& parameter : models::trained_parameters(spec, shape)) {
    if (sum->contains(parameter.name)) continue;  // magnitudes, and what is trained whole
    sum->add(parameter.name, parameter.shape, floats_of(*trained.tensors, parameter.name));
  }
  return {.spec = std::move(spec), .tensors = sum};
}

}  // namespace tessera::checkpoint
