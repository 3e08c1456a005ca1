// What settings need beside them to have an effect: the vocabulary of the field list (fields.cpp).
// Conditions look at what the user chose, never at how many ranks there happen to be, so that one
// job file serves one rank and many.
#pragma once

#include <string_view>

#include "tessera/config/fields.h"

namespace tessera::config {

inline bool is_text(const RunConfig& c) { return c.data.format == data::DataFormat::text; }
inline bool is_sharded(const RunConfig& c) { return parallel::is_sharded(c.parallel.placement); }
inline bool has_units(const RunConfig& c) { return c.parallel.units != parallel::Units::model; }
inline bool offloads(const RunConfig& c) {
  return c.parallel.offload_params != parallel::OffloadParams::none ||
         c.parallel.offload_optimizer != parallel::OffloadOptimizer::none;
}
inline bool offloads_to_drives(const RunConfig& c) {
  return c.parallel.offload_optimizer == parallel::OffloadOptimizer::nvme;
}
/// Muon's matrices are updated whole, and what rank 0 sends has no place on drives before it comes: masters
/// of such runs stay in memory.
inline parallel::OnDrives on_drives(const RunConfig& c) {
  using parallel::OnDrives;
  if (!offloads_to_drives(c)) return OnDrives::nothing;
  if (c.parallel.offload_params == parallel::OffloadParams::nvme) return OnDrives::parameters;
  const bool masters_stay =
      c.optimizer.type == optim::OptimizerType::muon || c.parallel.sync_module_states;
  return masters_stay ? OnDrives::states : OnDrives::masters;
}
inline bool gradients_on_drives(const RunConfig& c) {
  return c.parallel.offload_gradients == parallel::OffloadGradients::nvme;
}
/// What checkpointed blocks keep.
inline bool activations_on_drives(const RunConfig& c) {
  return c.memory.offload_activations == memory::OffloadActivations::nvme;
}
/// How many of these share offload.host_memory: each gets a part of it, and states what the others leave.
inline int64_t kinds_on_drives(const RunConfig& c) {
  return (offloads_to_drives(c) ? 1 : 0) +
         (c.parallel.offload_params == parallel::OffloadParams::nvme ? 1 : 0) +
         (gradients_on_drives(c) ? 1 : 0) + (activations_on_drives(c) ? 1 : 0);
}
/// Bytes of it that each of them has, at most.
inline int64_t part_of_host_memory(const RunConfig& c) {
  const int64_t bytes = c.offload.host_memory << 20;
  return kinds_on_drives(c) > 0 ? bytes / kinds_on_drives(c) : bytes;
}
inline bool rounds_updates(const RunConfig& c) {
  return c.precision.parameters != FloatType::fp32 ||
         c.precision.optimizer_states != optim::StateType::fp32;
}
/// Random numbers of a run beside the order of its data: first weights, dropout, rounding.
inline bool draws_numbers(const RunConfig& c) {
  return c.model.init == models::Init::random || c.model.dropout > 0 ||
         c.precision.stochastic_rounding || c.moe.input_jitter > 0 ||
         c.moe.sampling != nn::ExpertSampling::none || c.moe.drop_policy == nn::DropPolicy::random;
}
inline bool validates(const RunConfig& c) {
  return !c.data.validation.empty() || c.data.validation_fraction > 0;
}
inline bool saves_along_the_way(const RunConfig& c) {
  return c.checkpoint.every > 0 || c.checkpoint.every_minutes > 0;
}

constexpr Need kNoPath{"no model.path", [](const RunConfig& c) { return c.model.path.empty(); }};
constexpr Need kRandomWeights{
    "model.init random", [](const RunConfig& c) { return c.model.init == models::Init::random; }};
constexpr Need kPretrained{"model.init pretrained", [](const RunConfig& c) {
                             return c.model.init == models::Init::pretrained;
                           }};
constexpr Need kRandomNumbers{
    "model.init random, model.dropout, precision.stochastic_rounding, moe.input_jitter, "
    "moe.sampling or moe.drop_policy random",
    draws_numbers};

inline bool has_adapter(const RunConfig& c) { return c.adapter.type != models::AdapterType::none; }
constexpr Need kAdapter{"adapter.type lora or dora", has_adapter};
/// A stored adapter brings its settings.
constexpr Need kNewAdapter{
    "adapter.type lora or dora, and no adapter.path",
    [](const RunConfig& c) { return has_adapter(c) && c.adapter.path.empty(); }};
constexpr Need kPissa{"adapter.init pissa, and no adapter.path", [](const RunConfig& c) {
                        return has_adapter(c) && c.adapter.path.empty() &&
                               c.adapter.init == models::AdapterInit::pissa;
                      }};
constexpr Need kFourBitWeights{"model.weights nf4, nf4_double or fp4", [](const RunConfig& c) {
                                 return c.model.weights != WeightFormat::as_stored &&
                                        c.model.weights != WeightFormat::int8;
                               }};

constexpr Need kNoValidationFiles{"an empty data.validation",
                                  [](const RunConfig& c) { return c.data.validation.empty(); }};
constexpr Need kTokenFiles{"data.format tokens", [](const RunConfig& c) {
                             return c.data.format == data::DataFormat::tokens ||
                                    c.data.format == data::DataFormat::automatic;
                           }};
constexpr Need kTextFiles{"data.format text", [](const RunConfig& c) {
                            return is_text(c) || c.data.format == data::DataFormat::automatic;
                          }};
constexpr Need kRecords{"data.format records", [](const RunConfig& c) {
                          return c.data.format == data::DataFormat::records ||
                                 c.data.format == data::DataFormat::automatic;
                        }};
constexpr Need kRecordsOrChoices{"data.format records, or data.choices", [](const RunConfig& c) {
                                   return kRecords.met(c) || !c.data.choices.empty();
                                 }};
constexpr Need kNoRecords{"data.format other than records", [](const RunConfig& c) {
                            return c.data.format != data::DataFormat::records;
                          }};
constexpr Need kDocumentMask{"data.document_mask",
                             [](const RunConfig& c) { return c.data.document_mask; }};
constexpr Need kShuffles{"data.shuffle", [](const RunConfig& c) { return c.data.shuffle; }};
constexpr Need kValidatesAlongTheWay{"train.validate_every", [](const RunConfig& c) {
                                       return c.train.validate_every > 0 && validates(c);
                                     }};
constexpr Need kStopsEarly{"train.early_stopping_patience",
                           [](const RunConfig& c) { return c.train.early_stopping_patience > 0; }};
constexpr Need kValidates{"data.validation or data.validation_fraction above 0", validates};

constexpr Need kAdamW{"optimizer.type adamw, adamw8bit or muon", [](const RunConfig& c) {
                        return c.optimizer.type == optim::OptimizerType::adamw ||
                               c.optimizer.type == optim::OptimizerType::adamw8bit ||
                               c.optimizer.type == optim::OptimizerType::muon;
                      }};
constexpr Need kBetas{"optimizer.type adamw, adamw8bit, lion or muon", [](const RunConfig& c) {
                        return c.optimizer.type != optim::OptimizerType::sgd;
                      }};
constexpr Need kAdamWAlone{"optimizer.type adamw", [](const RunConfig& c) {
                             return c.optimizer.type == optim::OptimizerType::adamw;
                           }};
constexpr Need kMuon{"optimizer.type muon", [](const RunConfig& c) {
                       return c.optimizer.type == optim::OptimizerType::muon;
                     }};
/// Muon updates all matrices together.
constexpr Need kNoMuon{"optimizer.type other than muon", [](const RunConfig& c) {
                         return c.optimizer.type != optim::OptimizerType::muon;
                       }};
constexpr Need kAfterBackward{"optimizer.in_backward false",
                              [](const RunConfig& c) { return !c.optimizer.in_backward; }};
constexpr Need kSgd{"optimizer.type sgd", [](const RunConfig& c) {
                      return c.optimizer.type == optim::OptimizerType::sgd;
                    }};
constexpr Need kPreference{"preference.loss sigmoid, ipo or orpo", [](const RunConfig& c) {
                             return c.preference.loss != train::PreferenceLoss::none;
                           }};
constexpr Need kSigmoid{"preference.loss sigmoid", [](const RunConfig& c) {
                          return c.preference.loss == train::PreferenceLoss::sigmoid;
                        }};

constexpr Need kDecays{"optimizer.weight_decay above 0",
                       [](const RunConfig& c) { return c.optimizer.weight_decay > 0; }};
constexpr Need kFallingRate{"schedule.type linear, cosine or wsd", [](const RunConfig& c) {
                              return c.schedule.type != optim::LearningRateSchedule::constant;
                            }};
constexpr Need kWsd{"schedule.type wsd", [](const RunConfig& c) {
                      return c.schedule.type == optim::LearningRateSchedule::wsd;
                    }};

constexpr Need kRoutersChoose{"moe.force_balance false",
                              [](const RunConfig& c) { return !c.moe.force_balance; }};
constexpr Need kAuxLoss{"moe.aux_loss sequence, batch or transformers",
                        [](const RunConfig& c) { return c.moe.aux_loss != train::AuxLoss::none; }};

constexpr Need kCapacity{"moe.capacity_factor or moe.eval_capacity_factor", [](const RunConfig& c) {
                           return c.moe.capacity_factor || c.moe.eval_capacity_factor;
                         }};

constexpr Need kExpertParallel{"parallel.ep above 1",
                               [](const RunConfig& c) { return c.parallel.ep > 1; }};
constexpr Need kTensorParallel{"parallel.tp above 1",
                               [](const RunConfig& c) { return c.parallel.tp != 1; }};
constexpr Need kPipeline{"parallel.pp above 1",
                         [](const RunConfig& c) { return c.parallel.pp != 1; }};
constexpr Need kNoPipeline{"parallel.pp 1", [](const RunConfig& c) { return c.parallel.pp == 1; }};
constexpr Need kNoStageLayers{"no parallel.stage_layers",
                              [](const RunConfig& c) { return c.parallel.stage_layers.empty(); }};
constexpr Need kUnitsBySize{"parallel.units size", [](const RunConfig& c) {
                              return c.parallel.units == parallel::Units::size;
                            }};
constexpr Need kUnitsByName{"parallel.units name", [](const RunConfig& c) {
                              return c.parallel.units == parallel::Units::name;
                            }};
/// With one unit there is no next one to gather.
constexpr Need kSeveralUnits{"parallel.units other than model", has_units};
/// The last unit of a forward stays whole for its backward, unless a pipeline's next one comes
/// between.
constexpr Need kUnitsToReshard{"parallel.units other than model", [](const RunConfig& c) {
                                 return has_units(c) || c.parallel.pp != 1;
                               }};
constexpr Need kSharded{"parallel.placement other than replicate", is_sharded};
constexpr Need kFullShard{"parallel.placement full_shard", [](const RunConfig& c) {
                            return c.parallel.placement == parallel::Placement::full_shard;
                          }};
constexpr Need kFreesGradients{
    "parallel.placement shard_gradients or full_shard",
    [](const RunConfig& c) { return parallel::frees_gradients(c.parallel.placement); }};
/// Whole parameters that stay are not gathered for the backward.
constexpr Need kReshards{"parallel.reshard_after_forward other than false", [](const RunConfig& c) {
                           return parallel::reshards(c.parallel.reshard_after_forward);
                         }};
constexpr Need kPrefetches{
    "parallel.forward_prefetch or parallel.backward_prefetch", [](const RunConfig& c) {
      return c.parallel.forward_prefetch ||
             c.parallel.backward_prefetch != parallel::BackwardPrefetch::none;
    }};
/// Parameters on the host take the optimizer along, but for states on drives.
constexpr Need kNoOffloadedParams{
    "no parallel.offload_params, or nvme", [](const RunConfig& c) {
      return c.parallel.offload_params == parallel::OffloadParams::none || offloads_to_drives(c);
    }};
constexpr Need kOffloadsToDrives{"parallel.offload_optimizer nvme", offloads_to_drives};
constexpr Need kOnDrives{"parallel.offload_optimizer or memory.offload_activations nvme",
                         [](const RunConfig& c) { return kinds_on_drives(c) > 0; }};
constexpr Need kOffloads{"parallel.offload_params or parallel.offload_optimizer", offloads};

constexpr Need kLowPrecision{"precision.compute bf16 or fp16", [](const RunConfig& c) {
                               return c.precision.compute != FloatType::fp32;
                             }};
/// A step with fp16 counts only once all gradients are known to be finite.
constexpr Need kNoLossScale{"precision.compute other than fp16", [](const RunConfig& c) {
                              return c.precision.compute != FloatType::fp16;
                            }};
constexpr Need kFp8{"precision.matmul other than as_compute",
                    [](const RunConfig& c) { return c.precision.matmul != Matmul::as_compute; }};
constexpr Need kFp8OrWeights{
    "precision.matmul other than as_compute, or precision.weights fp8", [](const RunConfig& c) {
      return c.precision.matmul != Matmul::as_compute || c.precision.has_fp8_weights();
    }};
constexpr Need kGathersWeights{"precision.autocast false",
                               [](const RunConfig& c) { return !c.precision.autocast; }};
constexpr Need kGradientsStay{"optimizer.in_backward false",
                              [](const RunConfig& c) { return !c.optimizer.in_backward; }};
constexpr Need kFp8ByTensor{"precision.matmul fp8_tensor or fp8_delayed", [](const RunConfig& c) {
                              return c.precision.matmul == Matmul::fp8_tensor ||
                                     c.precision.matmul == Matmul::fp8_delayed;
                            }};
constexpr Need kFp8Delayed{"precision.matmul fp8_delayed", [](const RunConfig& c) {
                             return c.precision.matmul == Matmul::fp8_delayed;
                           }};
constexpr Need kRoundedUpdates{
    "precision.parameters bf16 or fp16, or precision.optimizer_states bf16 or fp8+fp16",
    rounds_updates};
constexpr Need kCheckpointsActivations{
    "memory.checkpointing other than none",
    [](const RunConfig& c) { return c.memory.checkpointing != memory::CheckpointMode::none; }};

constexpr Need kSaves{"checkpoint.every, checkpoint.every_minutes or checkpoint.at_end",
                      [](const RunConfig& c) { return c.checkpoint.saves(); }};
constexpr Need kSavesAlongTheWay{"checkpoint.every or checkpoint.every_minutes",
                                 saves_along_the_way};
constexpr Need kKeepsLast{"checkpoint.keep_last",
                          [](const RunConfig& c) { return c.checkpoint.keep_last > 0; }};
constexpr Need kResumes{"checkpoint.resume",
                        [](const RunConfig& c) { return c.checkpoint.resume != "none"; }};
constexpr Need kSavesOrResumes{
    "checkpoint.every, checkpoint.at_end or checkpoint.resume auto",
    [](const RunConfig& c) { return c.checkpoint.saves() || c.checkpoint.resume == "auto"; }};

constexpr Need kNoEpochs{"train.epochs 0", [](const RunConfig& c) { return c.train.epochs == 0; }};
constexpr Need kSamples{"train.sample_tokens above 0",
                        [](const RunConfig& c) { return c.train.sample_tokens > 0; }};
/// A line that is overwritten shows every step.
constexpr Need kLines{"logging.progress plain or auto, or precision.matmul other than as_compute",
                      [](const RunConfig& c) {
                        return c.logging.progress == report::ProgressMode::plain ||
                               c.logging.progress == report::ProgressMode::automatic ||
                               c.precision.matmul != Matmul::as_compute;
                      }};

}  // namespace tessera::config
