// The adapter that a job trains: new, or gone on with from a stored one.
#pragma once

#include <memory>

#include "tessera/checkpoint/formats/peft.h"
#include "tessera/config/run_config.h"
#include "tessera/models/adapt.h"

namespace tessera::train {

struct JobAdapter {
  models::AdapterSpec spec;
  int64_t seed = 0;                                       ///< of its first values
  std::shared_ptr<const checkpoint::PeftAdapter> stored;  ///< what it goes on from; null: nothing
};

/// The job's section adapter, or the settings of the adapter at adapter.path. UserError: what
/// PeftAdapter refuses, an adapter of another type than adapter.type.
JobAdapter adapter_of(const config::RunConfig& config, const models::ModelShape& shape);

/// The job with the adapter's settings as its own.
config::RunConfig with_adapter(config::RunConfig config, const JobAdapter& adapter);

/// Puts the adapter into the model, whose first values are `base`; gives those of all its
/// parameters. What is on a device and trained has its values afterwards. Without an adapter:
/// nothing.
models::FirstValues add_adapter(models::LanguageModel& model, const JobAdapter& adapter,
                                models::FirstValues base);

}  // namespace tessera::train
