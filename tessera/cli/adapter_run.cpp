#include "tessera/cli/adapter_run.h"

#include <memory>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/peft.h"
#include "tessera/cli/stored_model.h"

namespace tessera::cli {

AdapterRun open_adapter_run(const std::filesystem::path& source, int64_t step) {
  const auto folder = chosen_checkpoint(source, step);
  auto training = checkpoint::open_training({.source = folder, .with_optimizer = false});
  auto adapter = checkpoint::stored_adapter(training, folder);
  if (!adapter) {
    user_error("{}: no adapter; expected a run that trained one, or a folder with {} and {}",
               source.string(), checkpoint::kPeftConfig, checkpoint::kPeftWeights);
  }
  return {std::move(training), std::move(*adapter)};
}

checkpoint::AdapterPart own_part(const AdapterRun& run) {
  return {.spec = run.adapter.spec, .tensors = {std::shared_ptr<void>(), &run.training.tensors}};
}

std::vector<checkpoint::AdapterPart> parts_below(const AdapterRun& run, bool own_only,
                                                 const models::ModelShape& shape) {
  auto adapter = run.adapter;
  if (own_only) {
    if (adapter.base.adapters.empty()) refuse_own_only(run.training.tensors.path().string());
    adapter.base.adapters.clear();
  }
  return checkpoint::parts_of_base(adapter, shape);
}

config::RunConfig with_stored_adapter(config::RunConfig job, const models::ModelShape& shape) {
  auto& section = job.adapter;
  if (section.path.empty()) return job;
  const auto dropout = section.dropout;  // the job's, as in training
  const checkpoint::PeftAdapter stored(section.path, shape);
  static_cast<models::AdapterSpec&>(section) = stored.config().spec;
  section.dropout = dropout;
  return job;
}

void refuse_own_only(const std::string& source) {
  user_error("{}: --own-only takes effect on a run that trained upon others (adapter.base)",
             source);
}

}  // namespace tessera::cli
