// The adapter that a job trains: new, or gone on with from a stored one; and what it changes of the base.
#pragma once

#include <memory>
#include <vector>

#include "tessera/checkpoint/formats/stored_adapter.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/adapt.h"

namespace tessera::train {

struct JobAdapter {
  models::AdapterSpec spec;
  int64_t seed = 0;                                        ///< of its first values
  std::shared_ptr<const checkpoint::TensorSource> stored;  ///< what it goes on from; null: nothing
  std::vector<checkpoint::AdapterPart> below;              ///< adapter.base
  std::shared_ptr<const checkpoint::AdapterPart> initial;  ///< PiSSA's, once change_base() has been
};

/// The job's section adapter, or the settings of the adapter at adapter.path, and those of adapter.base.
/// UserError: what PeftAdapter refuses, an adapter of another type than adapter.type, of PiSSA whose base
/// cannot be made again.
JobAdapter adapter_of(const config::RunConfig& config, const models::ModelShape& shape);

/// The job with the adapter's settings as its own.
config::RunConfig with_adapter(config::RunConfig config, const JobAdapter& adapter);

/// Gives the values of the base beside which the adapter is trained, of the model's `values`: with adapter.base in
/// them and less what PiSSA begins with, which a run that is resumed finds beside its checkpoints.
/// What of the model is on a device has them afterwards. To be called before weights are quantised.
/// Collective over `axis` with PiSSA. UserError: what pissa_start and MergedSource refuse.
models::FirstValues change_base(models::LanguageModel& model, JobAdapter& adapter,
                                const config::RunConfig& config, models::FirstValues values,
                                const mesh::Axis& axis);

/// Puts the adapter into the model, whose first values are `base.values`; gives those of all its
/// parameters. `base.begun_with`: the weights as they are kept. What is on a device and trained has
/// its values afterwards. Without an adapter: nothing.
models::FirstValues add_adapter(models::LanguageModel& model, const JobAdapter& adapter,
                                models::BaseValues base);

}  // namespace tessera::train
