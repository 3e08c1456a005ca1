#include "tessera/cli/adapter_run.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/cli/stored_model.h"
#include "tessera/models/adapter_json.h"

namespace tessera::cli {

AdapterRun open_adapter_run(const std::filesystem::path& source, int64_t step) {
  const auto folder = chosen_checkpoint(source, step);
  auto training = checkpoint::open_training({.source = folder, .with_optimizer = false});
  auto base = checkpoint::base_weights_of(training.about.state);
  if (!base) {
    user_error("{}: no adapter; expected a run that trained one, or a folder with {} and {}",
               source.string(), checkpoint::kPeftConfig, checkpoint::kPeftWeights);
  }
  auto spec = models::adapter_spec_of(base->adapter, folder.string());
  return {std::move(training), std::move(*base), std::move(spec)};
}

}  // namespace tessera::cli
