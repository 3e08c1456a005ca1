#include "tessera/config/accelerate/deepspeed_decide.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/letters.h"
#include "tessera/config/accelerate/deepspeed_values.h"
#include "tessera/config/precision.h"

namespace tessera::config::accelerate::deepspeed {
namespace {

std::string optimizer(const DeepspeedValues& values) {
  return lower_case(values.text("optimizer.type", ""));
}

int64_t stage_of(const DeepspeedValues& values) {
  return values.integer("zero_optimization.stage").value_or(0);
}

bool params_on_host(const DeepspeedValues& values) {
  return stage_of(values) == 3 &&
         (values.flag("zero_optimization.cpu_offload_param") ||
          values.text("zero_optimization.offload_param.device", "none") == "cpu");
}

bool params_on_drives(const DeepspeedValues& values) {
  return stage_of(values) == 3 &&
         values.text("zero_optimization.offload_param.device", "none") == "nvme";
}

bool optimizer_on_host(const DeepspeedValues& values) {
  return stage_of(values) > 0 &&
         (values.flag("zero_optimization.cpu_offload") ||
          values.text("zero_optimization.offload_optimizer.device", "none") == "cpu");
}

/// On the host, or on drives.
bool optimizer_offloaded(const DeepspeedValues& values) {
  return optimizer_on_host(values) ||
         (stage_of(values) > 0 &&
          values.text("zero_optimization.offload_optimizer.device", "none") == "nvme");
}

constexpr const char* kStage3 = "needs zero_optimization.stage 3, in DeepSpeed too";
constexpr const char* kNoZero = "needs zero_optimization.stage 1, 2 or 3, in DeepSpeed too";

}  // namespace

// ---- batches -----------------------------------------------------------------------------------

Decision train_batch(const DeepspeedValues&, const Setting& setting) {
  return translated({{"train.global_batch", setting.value}});
}

Decision micro_batch(const DeepspeedValues& values, const Setting& setting) {
  const auto batch = batch_of(values);
  JobKeys job{{"train.micro_batch", setting.value}};
  if (batch.global) return translated(job);
  if (!batch.processes) {
    return translated(job, "without num_processes, train.global_batch is the job file's");
  }
  const auto accumulation = batch.accumulation.value_or(1);
  const auto global = static_cast<double>(*batch.micro) * static_cast<double>(accumulation) *
                      static_cast<double>(*batch.processes);
  job.emplace_back("train.global_batch", fmt::format("{}", global));
  return translated(job, fmt::format("{} x {} accumulated x {} processes", *batch.micro,
                                     accumulation, *batch.processes));
}

Decision accumulation(const DeepspeedValues& values, const Setting& setting) {
  if (values.find("train_micro_batch_size_per_gpu") != nullptr) {
    return honoured("train.global_batch counts it");
  }
  const auto& steps = setting.value;
  return translated({}, "train.micro_batch=" + (steps == "1" ? "0" : "share of a rank / " + steps));
}

// ---- experts -----------------------------------------------------------------------------------

Decision expert_ranks(const DeepspeedValues& values, const Setting& setting) {
  if (!values.flag("expert_parallel.enabled")) {
    return not_applicable("counts with expert_parallel.enabled");
  }
  return translated({{"parallel.ep", setting.value}});
}

// ---- optimizer and schedule --------------------------------------------------------------------

Decision clipping(const DeepspeedValues&, const Setting& setting) {
  return translated({{"optimizer.max_grad_norm", setting.value}});
}

Decision optimizer_type(const DeepspeedValues& values, const Setting& setting) {
  const std::string rest = "what its params leave out the job file says";
  const auto name = optimizer(values);
  if (name == "adamw") return translated({{"optimizer.type", "adamw"}}, rest);
  if (name == "sgd") return translated({{"optimizer.type", "sgd"}}, rest);
  if (name != "adam") return refused(setting.value + " is not built; AdamW and SGD are");
  return translated({{"optimizer.type", "adamw"}}, "adam_w_mode makes it AdamW; " + rest);
}

Decision optimizer_number(const DeepspeedValues& values, const Setting& setting) {
  const auto name = setting.key.substr(setting.key.rfind('.') + 1);
  if (name == "eps" && optimizer(values) == "sgd") return refused("SGD has none");
  return translated({{"optimizer." + name, setting.value}});
}

Decision learning_rate(const DeepspeedValues& values, const Setting& setting) {
  if (values.find("scheduler.params.warmup_max_lr") != nullptr) {
    return not_applicable("scheduler.params.warmup_max_lr takes its place, in DeepSpeed too");
  }
  return translated({{"optimizer.learning_rate", setting.value}});
}

Decision betas(const DeepspeedValues& values, const Setting& setting) {
  if (optimizer(values) == "sgd") return refused("SGD has none");
  const auto both = nlohmann::json::parse(setting.value, nullptr, /*allow_exceptions=*/false);
  const bool fits =
      both.is_array() && both.size() == 2 && both[0].is_number() && both[1].is_number();
  if (!fits) {
    user_error("{}: {}: expected two numbers, as [0.9, 0.95], got {}", setting.origin, setting.key,
               setting.value);
  }
  return translated({{"optimizer.beta1", fmt::format("{}", both[0].get<double>())},
                     {"optimizer.beta2", fmt::format("{}", both[1].get<double>())}});
}

Decision momentum(const DeepspeedValues& values, const Setting& setting) {
  if (optimizer(values) != "sgd") return refused("AdamW has none; its betas say it");
  return translated({{"optimizer.momentum", setting.value}});
}

Decision adam_w_mode(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "true") return honoured();
  if (optimizer(values) != "adam") return not_applicable("of Adam alone, in DeepSpeed too");
  if (values.text("optimizer.params.weight_decay", "") == "0") {
    return honoured("without weight decay Adam and AdamW are the same");
  }
  return refused(
      "weight decay within the gradient is not built; set adam_w_mode to true, or weight_decay to "
      "0");
}

Decision scheduler_type(const DeepspeedValues& values, const Setting& setting) {
  const std::string remark = values.find("scheduler.params.warmup_type") != nullptr
                                 ? ""
                                 : "the warm-up is linear; DeepSpeed's default is logarithmic";
  if (setting.value == "WarmupLR") return translated({{"schedule.type", "constant"}}, remark);
  if (setting.value == "WarmupDecayLR") {
    return translated({{"schedule.type", "linear"}, {"schedule.min_ratio", "0"}}, remark);
  }
  if (setting.value == "WarmupCosineLR") {
    const auto floor = values.text("scheduler.params.cos_min_ratio", "0.0001");
    return translated({{"schedule.type", "cosine"}, {"schedule.min_ratio", floor}}, remark);
  }
  return refused(setting.value + " is not built; WarmupLR, WarmupDecayLR and WarmupCosineLR are");
}

Decision warmup_start(const DeepspeedValues&, const Setting& setting) {
  return setting.value == "0" ? honoured() : refused("the warm-up starts at 0; set it to 0");
}

Decision warmup_peak(const DeepspeedValues&, const Setting& setting) {
  return translated({{"optimizer.learning_rate", setting.value}});
}

Decision warmup_steps(const DeepspeedValues&, const Setting& setting) {
  return translated({{"schedule.warmup_steps", setting.value}});
}

Decision warmup_type(const DeepspeedValues&, const Setting& setting) {
  return setting.value == "linear"
             ? honoured()
             : refused("a logarithmic warm-up is not built; set it to linear");
}

Decision total_steps(const DeepspeedValues&, const Setting& setting) {
  return translated({{"train.steps", setting.value}}, "a schedule ends where training does");
}

Decision cosine_floor(const DeepspeedValues& values, const Setting&) {
  return values.text("scheduler.type", "") == "WarmupCosineLR"
             ? honoured("schedule.min_ratio, see scheduler.type")
             : not_applicable("of WarmupCosineLR alone");
}

// ---- precision ---------------------------------------------------------------------------------

namespace {

std::string autocast_to(const DeepspeedValues& values) {
  // Without a dtype torch.autocast takes float16 on GPUs.
  const auto dtype = values.text("torch_autocast.dtype", "fp16");
  return dtype.find("bf") != std::string::npos ? "bf16" : "fp16";
}

}  // namespace

std::string compute_dtype(const DeepspeedValues& values) {
  const auto* precision = values.settings().find("mixed_precision");
  for (const std::string dtype : {"fp16", "bf16"}) {
    const bool asked = precision != nullptr && lower_case(precision->value) == dtype;
    if (values.text(dtype + ".enabled", asked ? "true" : "false") == "true") return dtype;
  }
  return values.flag("torch_autocast.enabled") ? autocast_to(values) : "fp32";
}

Decision sixteen_bits(const DeepspeedValues& values, const Setting& setting) {
  const auto dtype = compute_dtype(values);
  if (setting.value == "false" && dtype != "fp32") return honoured();
  return translated({{"precision.compute", dtype}, {"precision.autocast", "false"}});
}

Decision bf16_parameters(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "false") return honoured();
  if (compute_dtype(values) != "bf16")
    return not_applicable("needs bf16.enabled, in DeepSpeed too");
  return translated({{"precision.parameters", "bf16"}});
}

Decision bf16_states(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "false") return honoured();
  if (!values.flag("bf16.bf16_master_weights_and_grads") || compute_dtype(values) != "bf16") {
    return refused("needs bf16.enabled and bf16.bf16_master_weights_and_grads, in DeepSpeed too");
  }
  return translated({{"precision.optimizer_states", "bf16"}});
}

Decision msamp(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "false") return honoured();
  const auto level = lower_case(values.text("msamp.opt_level", "O1"));
  const auto name = "msamp_" + level;
  if (compute_dtype(values) != "bf16") return translated({{"precision.preset", name}});
  // The preset's settings, but those of 16 bits in bf16.
  JobKeys job;
  const auto preset = level == "o1"   ? PrecisionPreset::msamp_o1
                      : level == "o2" ? PrecisionPreset::msamp_o2
                                      : PrecisionPreset::msamp_o3;
  for (const auto& [key, value] : values_of(preset)) {
    job.emplace_back(key, value == "fp16" ? "bf16" : value);
  }
  return translated(std::move(job));
}

Decision overflow_check(const DeepspeedValues&, const Setting& setting) {
  if (setting.value == "true") return translated({{"train.nonfinite", "skip"}});
  return not_applicable("a step with NaN or infinity is never taken: train.nonfinite");
}

Decision autocast(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "false") return honoured();
  return translated({{"precision.compute", autocast_to(values)}, {"precision.autocast", "true"}});
}

Decision autocast_dtype(const DeepspeedValues& values, const Setting&) {
  return values.flag("torch_autocast.enabled") ? honoured("see torch_autocast.enabled")
                                               : not_applicable("needs torch_autocast.enabled");
}

Decision reduce_dtype(const DeepspeedValues& values, const Setting& setting) {
  const auto sent = values.text("communication_data_type", setting.value);
  if (sent != setting.value) {
    return refused(
        "gradients are accumulated and reduced in one dtype, and "
        "communication_data_type is " +
        sent);
  }
  const auto compute = values.flag("torch_autocast.enabled") ? "fp32" : compute_dtype(values);
  if (setting.value != "fp32" && setting.value != compute) {
    return refused(fmt::format("expected {}", compute == "fp32" ? "fp32 (there are no gradients in "
                                                                  "16 bits)"
                                                                : "fp32 or " + compute));
  }
  return translated({{"precision.reduce", setting.value}});
}

// ---- ZeRO --------------------------------------------------------------------------------------

Decision stage(const DeepspeedValues& values, const Setting&) {
  constexpr std::array kPlacements{"replicate", "shard_optimizer", "shard_gradients", "full_shard"};
  return translated(
      {{"parallel.placement", kPlacements.at(static_cast<size_t>(stage_of(values)))}});
}

Decision unused_parameters(const DeepspeedValues&, const Setting& setting) {
  if (setting.value == "true") return honoured();
  return translated({{"train.report_unused_parameters", "true"}},
                    "they are named after the first step");
}

Decision hpz(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "0" || setting.value == "1") return honoured();
  if (stage_of(values) != 3) return not_applicable(kStage3);
  return translated({{"parallel.reshard_after_forward", setting.value}});
}

Decision mics(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "-1" || setting.value == "0") return honoured();
  if (stage_of(values) != 3) return not_applicable(kStage3);
  return translated({{"parallel.dp_shard", setting.value}});
}

Decision offload_param(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "none" || setting.value == "false") return honoured();
  if (params_on_drives(values)) {
    std::vector<std::pair<std::string, std::string>> keys{{"parallel.offload_params", "nvme"}};
    if (optimizer_offloaded(values)) return translated(std::move(keys));
    keys.emplace_back("parallel.offload_optimizer", "nvme");
    return translated(std::move(keys), "the optimizer's states go with them");
  }
  if (!params_on_host(values)) return not_applicable(kStage3);
  return translated({{"parallel.offload_params", "true"}},
                    optimizer_offloaded(values) ? "" : "the optimizer goes with them");
}

Decision offload_optimizer(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "none" || setting.value == "false") return honoured();
  if (!optimizer_offloaded(values)) return not_applicable(kNoZero);
  if (setting.value == "nvme") {
    return translated({{"parallel.offload_optimizer", "nvme"}}, "the optimizer's states");
  }
  if (params_on_drives(values)) {
    return translated({{"parallel.offload_optimizer", "nvme"}},
                      "beside parameters on drives the states are there, too");
  }
  if (params_on_host(values)) return honoured("parallel.offload_params takes the optimizer along");
  return translated({{"parallel.offload_optimizer", "true"}});
}

Decision offload_ratio(const DeepspeedValues& values, const Setting& setting) {
  if (setting.value == "1") return honoured();
  if (!optimizer_offloaded(values)) return not_applicable("the optimizer is not offloaded");
  if (stage_of(values) != 3) return not_applicable(kStage3);
  if (params_on_host(values) || params_on_drives(values)) {
    return refused(
        "a share of the optimizer is offloaded with that of its parameters; set it to 1");
  }
  return translated({{"parallel.offload_fraction", setting.value}});
}

Decision offload_path(const DeepspeedValues& values, const Setting& setting) {
  const bool param = setting.key.find("offload_param") != std::string::npos;
  const bool states_on_drives = optimizer_offloaded(values) && !optimizer_on_host(values);
  if (param ? !params_on_drives(values) : !states_on_drives) {
    return not_applicable(fmt::format("counts for zero_optimization.{}.device nvme",
                                      param ? "offload_param" : "offload_optimizer"));
  }
  const auto of_states = values.text("zero_optimization.offload_optimizer.nvme_path", "");
  if (!param || !states_on_drives || of_states.empty())
    return translated({{"offload.paths", setting.value}});
  if (of_states == setting.value) return honoured("offload.paths, as of the optimizer's states");
  return not_applicable("offload.paths is the optimizer's; both go there");
}

Decision offload_drives(const DeepspeedValues& values, const Setting& setting) {
  constexpr int64_t kKib = 1 << 10;
  if (!params_on_drives(values) && (!optimizer_offloaded(values) || optimizer_on_host(values)))
    return not_applicable("counts for zero_optimization.offload_optimizer.device nvme");
  if (setting.key.ends_with("queue_depth"))
    return translated({{"offload.queue_depth", setting.value}});
  const int64_t bytes = values.integer("aio.block_size").value_or(0);
  if (bytes % (4 * kKib) != 0) return refused("expected a multiple of 4096 bytes");
  return translated({{"offload.block_size", std::to_string(bytes / kKib)}}, "KiB");
}

Decision cpu_checkpointing(const DeepspeedValues&, const Setting& setting) {
  if (setting.value == "false") return honoured();
  return translated_if_effective({{"memory.offload_activations", "true"}});
}

// ---- output ------------------------------------------------------------------------------------

Decision tensorboard(const DeepspeedValues&, const Setting& setting) {
  return translated({{"logging.tensorboard", setting.value}});
}

}  // namespace tessera::config::accelerate::deepspeed
