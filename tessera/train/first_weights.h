// What the weights of a job's model are at first: drawn or stored, kept in its format, beside its adapter.
#pragma once

#include <optional>

#include "tessera/checkpoint/formats/pretrained.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/language_model.h"
#include "tessera/parallel/data/flat_buffer.h"
#include "tessera/parallel/tensor/tensor_parallel.h"
#include "tessera/train/job_adapter.h"

namespace tessera::train {

/// The weights that the job's model begins with, if they are stored; of the whole model, before it is changed.
std::optional<checkpoint::Pretrained> stored_weights(const models::LanguageModel& model,
                                                     const config::ModelSection& section);

/// Gives the model the job's format of weights and its adapter, and their first values. `stored`: stored_weights().
parallel::FlatBuffer::Fill complete(models::LanguageModel& model, JobAdapter& adapter,
                                    const config::RunConfig& config,
                                    const std::optional<checkpoint::Pretrained>& stored,
                                    const mesh::Axis& axis);

/// Makes of `fill`, which is for whole parameters, one for what this rank has of them.
parallel::FlatBuffer::Fill fill_parts(parallel::FlatBuffer::Fill fill,
                                      const parallel::TensorParts& parts);

}  // namespace tessera::train
