// The keys of a DeepSpeed configuration whose effect depends on their value, or on other keys.
#pragma once

#include "tessera/config/accelerate/deepspeed_keys.h"

namespace tessera::config::accelerate::deepspeed {

/// fp16, bf16 or fp32: what sections fp16 and bf16 and, where they leave it open, mixed_precision
/// of Accelerate's file say.
std::string compute_dtype(const DeepspeedValues& values);

// Batches
Decision train_batch(const DeepspeedValues& values, const Setting& setting);
Decision expert_ranks(const DeepspeedValues& values, const Setting& setting);
Decision micro_batch(const DeepspeedValues& values, const Setting& setting);
Decision accumulation(const DeepspeedValues& values, const Setting& setting);

// Optimizer and schedule
Decision clipping(const DeepspeedValues& values, const Setting& setting);
Decision optimizer_type(const DeepspeedValues& values, const Setting& setting);
Decision optimizer_number(const DeepspeedValues& values, const Setting& setting);
Decision learning_rate(const DeepspeedValues& values, const Setting& setting);
Decision betas(const DeepspeedValues& values, const Setting& setting);
Decision momentum(const DeepspeedValues& values, const Setting& setting);
Decision adam_w_mode(const DeepspeedValues& values, const Setting& setting);
Decision scheduler_type(const DeepspeedValues& values, const Setting& setting);
Decision warmup_start(const DeepspeedValues& values, const Setting& setting);
Decision warmup_peak(const DeepspeedValues& values, const Setting& setting);
Decision warmup_steps(const DeepspeedValues& values, const Setting& setting);
Decision warmup_type(const DeepspeedValues& values, const Setting& setting);
Decision total_steps(const DeepspeedValues& values, const Setting& setting);
Decision cosine_floor(const DeepspeedValues& values, const Setting& setting);

// Precision
Decision sixteen_bits(const DeepspeedValues& values, const Setting& setting);
Decision bf16_parameters(const DeepspeedValues& values, const Setting& setting);
Decision msamp(const DeepspeedValues& values, const Setting& setting);
Decision bf16_states(const DeepspeedValues& values, const Setting& setting);
Decision overflow_check(const DeepspeedValues& values, const Setting& setting);
Decision autocast(const DeepspeedValues& values, const Setting& setting);
Decision autocast_dtype(const DeepspeedValues& values, const Setting& setting);
Decision reduce_dtype(const DeepspeedValues& values, const Setting& setting);

// ZeRO
Decision stage(const DeepspeedValues& values, const Setting& setting);
Decision unused_parameters(const DeepspeedValues& values, const Setting& setting);
Decision hpz(const DeepspeedValues& values, const Setting& setting);
Decision mics(const DeepspeedValues& values, const Setting& setting);
Decision offload_optimizer(const DeepspeedValues& values, const Setting& setting);
Decision offload_path(const DeepspeedValues& values, const Setting& setting);
Decision offload_param(const DeepspeedValues& values, const Setting& setting);
/// Keys of drives: nvme_path, and aio's block_size and queue_depth.
Decision offload_drives(const DeepspeedValues& values, const Setting& setting);
Decision cpu_checkpointing(const DeepspeedValues& values, const Setting& setting);
Decision offload_ratio(const DeepspeedValues& values, const Setting& setting);

// Output
Decision tensorboard(const DeepspeedValues& values, const Setting& setting);

}  // namespace tessera::config::accelerate::deepspeed
