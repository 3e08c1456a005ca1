#include "tessera/inference/stored_shape.h"

#include "tessera/base/error.h"
#include "tessera/models/hf_config.h"

namespace tessera::inference {

models::ModelShape stored_shape(const checkpoint::TrainingSource& training, int64_t num_ranks) {
  const auto where = training.tensors.path().string();
  const auto& config = training.about.model;
  if (!config.is_object())
    user_error(
        "{}: its model is unknown, as no config.json is with it; give a run, a checkpoint or a "
        "Hugging Face folder",
        where);
  auto shape = models::model_shape_of(config, where);
  if (const auto problem = models::division_problem(shape, num_ranks))
    user_error("{} ranks: {}", num_ranks, *problem);
  return shape;
}

}  // namespace tessera::inference
