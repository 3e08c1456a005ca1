// What a run needs in a folder of torch.distributed.checkpoint, by the names of torch's optimizers.
#include <algorithm>
#include <optional>
#include <string_view>

#include "tessera/checkpoint/formats/dcp.h"

namespace tessera::checkpoint {
namespace {

struct OptimizerKey {
  std::string parameter, state;
};

/// What `[..optim*.]state.PARAMETER.STATE` says; nullopt if a name is not of this form. (The name
/// of a parameter has dots of its own, that of a state has none.)
std::optional<OptimizerKey> optimizer_key(std::string_view name) {
  constexpr std::string_view kState = "state.";
  size_t begin = 0;
  if (!name.starts_with(kState)) {
    const size_t found = name.find(".state.");
    if (found == std::string_view::npos) return std::nullopt;
    const auto wrapper = name.substr(0, found);
    const auto owner = wrapper.substr(wrapper.rfind('.') + 1);  // npos + 1 is 0
    if (!owner.starts_with("optim")) return std::nullopt;
    begin = found + 1;
  }
  const auto rest = name.substr(begin + kState.size());
  const size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  return OptimizerKey{std::string(rest.substr(0, dot)), std::string(rest.substr(dot + 1))};
}

/// Is it one of the optimizer's settings ("optimizer.param_groups.0.lr")?
bool is_setting(std::string_view name) {
  return name.starts_with("param_groups.") || name.find(".param_groups.") != std::string_view::npos;
}

}  // namespace

StoredTraining stored_training(const DcpSource& source) {
  StoredTraining training;
  StoredTraining::Names in_model, others;  // below a key "model", and not
  for (const auto& [name, info] : source.tensors()) {
    if (is_setting(name)) continue;
    if (auto key = optimizer_key(name)) {
      training.states[key->state][key->parameter] = name;
      continue;
    }
    const auto keys = source.keys(name);
    const bool is_in_model = std::find(keys.begin(), keys.end() - 1, "model") != keys.end() - 1;
    (is_in_model ? in_model : others)[keys.back()] = name;
  }
  training.parameters = in_model.empty() ? std::move(others) : std::move(in_model);
  take_step(source, training);
  return training;
}

}  // namespace tessera::checkpoint
