// Accelerate's mixed_precision fp8 and fp8_config, and Megatron's --fp8-*: the recipes of torchao, Transformer
// Engine and MS-AMP.
#include <fmt/format.h>

#include <utility>

#include "tessera/base/letters.h"
#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

const std::string kFp8 = "fp8_config.fp8_";
const std::string kMegatron = "megatron_lm_config.megatron_lm_";

/// Without one Accelerate takes what is installed, torchao first.
std::string fp8_backend(const RuleInput& input) {
  return input.given(kFp8 + "backend") ? input.text(kFp8 + "backend") : "AO";
}

bool scales_blocks(const RuleInput& input) {
  return input.text(kFp8 + "use_mxfp8_block_scaling") == "true";
}

/// The rule of keys that count for one backend: that `decide` is asked.
using DecideFp8 = Decision (*)(const RuleInput& input);

Decision of_backend(const RuleInput& input, const char* wanted, DecideFp8 decide) {
  if (input.text("mixed_precision") != "fp8")
    return not_applicable("counts for mixed_precision fp8");
  if (fp8_backend(input) != wanted)
    return not_applicable(fmt::format("counts for backend {}", wanted));
  return decide(input);
}

Decision backend_rule(const RuleInput& input) {
  if (input.text("mixed_precision") != "fp8")
    return not_applicable("counts for mixed_precision fp8");
  return honoured("mixed_precision says what comes of it");
}

/// The rule of a setting of delayed scaling, which mxfp8 has not.
Decision delayed(const RuleInput& input, const std::string& key, const std::string& value) {
  if (scales_blocks(input)) return not_applicable("mxfp8 has no history");
  return translated({{"precision." + key, value}});
}

Decision fp8_margin(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    return delayed(own, "fp8_margin", own.setting.value);
  });
}

Decision fp8_interval(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    return delayed(own, "fp8_interval", own.setting.value);
  });
}

Decision fp8_history(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    return delayed(own, "fp8_amax_history", own.setting.value);
  });
}

Decision fp8_amax(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    return scales_blocks(own) ? not_applicable("mxfp8 has no history")
                              : honoured("see mixed_precision");
  });
}

Decision fp8_format(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    if (own.setting.value == "E5M2")
      return refused("Transformer Engine trains in no such format; set HYBRID or E4M3");
    return delayed(own, "fp8_format", lower_case(own.setting.value));
  });
}

Decision override_products(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    if (own.setting.value.find("true") == std::string::npos) return honoured();
    return refused(
        "products of a layer are rounded together; set false, or name layers in "
        "precision.fp8_keep; precision.matmul fp8_row_wgrad16 leaves weights' gradients alone");
  });
}

Decision during_eval(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput& own) {
    if (own.setting.value == "false") return honoured();
    return refused("validation is never rounded; set false");
  });
}

Decision block_scaling(const RuleInput& input) {
  return of_backend(input, "TE", [](const RuleInput&) { return honoured("see mixed_precision"); });
}

Decision opt_level(const RuleInput& input) {
  return of_backend(input, "MSAMP",
                    [](const RuleInput&) { return honoured("see mixed_precision"); });
}

Decision gathers(const RuleInput& input) {
  return of_backend(input, "AO", [](const RuleInput& own) {
    if (own.type != "FSDP") return not_applicable("counts for distributed_type FSDP");
    if (own.setting.value == "false") return honoured();
    return translated({{"precision.weights", "fp8"}});
  });
}

Decision pads(const RuleInput& input) {
  return of_backend(input, "AO", [](const RuleInput& own) {
    return translated({{"precision.fp8_pad", own.setting.value}});
  });
}

// --- Megatron.

/// The rule of keys that count for products in 8 bits: that `decide` is asked.
Decision of_megatron(const RuleInput& input, DecideFp8 decide) {
  if (!input.given(kMegatron + "fp8_format")) return not_applicable("counts for fp8_format");
  return decide(input);
}

bool is_delayed(const RuleInput& input) {
  return input.text(kMegatron + "fp8_recipe") == "delayed";
}

Decision megatron_format(const RuleInput& input) {
  const auto recipe = input.text(kMegatron + "fp8_recipe");
  const auto& format = input.setting.value;
  static const std::map<std::string, std::string> matmuls{{"tensorwise", "fp8_tensor"},
                                                          {"delayed", "fp8_delayed"},
                                                          {"blockwise", "fp8_block"},
                                                          {"mxfp8", "mxfp8"}};
  const auto matmul = matmuls.find(recipe);
  if (matmul == matmuls.end()) return not_applicable("fp8_recipe custom says how");
  JobKeys job{{"precision.matmul", matmul->second}};
  if (recipe == "tensorwise" || recipe == "delayed") {
    job.emplace_back("precision.fp8_format", format);
  } else if (format != "e4m3") {
    return refused(fmt::format("{} scales numbers of E4M3 alone; set e4m3", recipe));
  }
  if (recipe == "delayed") {  // whose defaults are others than ours
    job.emplace_back("precision.fp8_amax_history", input.text(kMegatron + "fp8_amax_history_len"));
    job.emplace_back("precision.fp8_amax", input.text(kMegatron + "fp8_amax_compute_algo"));
  }
  return translated(std::move(job));
}

Decision megatron_recipe(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.setting.value != "custom") return honoured("see fp8_format");
    return refused("a recipe in Python is not read; set tensorwise, delayed, blockwise or mxfp8");
  });
}

Decision megatron_history(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    return is_delayed(own) ? honoured("see fp8_format") : not_applicable("counts for delayed");
  });
}

Decision megatron_delayed(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (!is_delayed(own)) return not_applicable("counts for delayed");
    const auto key = own.setting.key.substr(kMegatron.size());
    return translated({{"precision." + key, own.setting.value}});
  });
}

Decision megatron_wgrad(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.setting.value == "true") return honoured();
    return refused("set true, or precision.matmul fp8_row_wgrad16 in the job file");
  });
}

Decision megatron_gathers(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.setting.value == "false") return honoured();
    return translated({{"precision.weights", "fp8"}});
  });
}

Decision megatron_ends(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.setting.value == "false") return honoured();
    return translated({{"precision.fp8_keep", "[first_last]"}});
  });
}

Decision megatron_num_ends(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.text(kMegatron + "first_last_layers_bf16") != "true") {
      return not_applicable("counts for first_last_layers_bf16");
    }
    if (own.setting.value == "1") return honoured();
    return refused(
        "first_last is one block at each end; set 1, or name blocks in precision.fp8_keep");
  });
}

Decision megatron_attention(const RuleInput& input) {
  return of_megatron(input, [](const RuleInput& own) {
    if (own.setting.value == "false") return honoured();
    return refused("attention is never in 8 bits; set false");
  });
}

Decision megatron_rows(const RuleInput&) {
  return not_applicable("rows of experts need no padding");
}

}  // namespace

const Rules& megatron_fp8_rules() {
  static const Rules rules{{kMegatron + "fp8_format", megatron_format},
                           {kMegatron + "fp8_recipe", megatron_recipe},
                           {kMegatron + "fp8_margin", megatron_delayed},
                           {kMegatron + "fp8_interval", megatron_delayed},
                           {kMegatron + "fp8_amax_history_len", megatron_history},
                           {kMegatron + "fp8_amax_compute_algo", megatron_history},
                           {kMegatron + "fp8_wgrad", megatron_wgrad},
                           {kMegatron + "fp8_param_gather", megatron_gathers},
                           {kMegatron + "first_last_layers_bf16", megatron_ends},
                           {kMegatron + "num_layers_at_start_in_bf16", megatron_num_ends},
                           {kMegatron + "num_layers_at_end_in_bf16", megatron_num_ends},
                           {kMegatron + "fp8_dot_product_attention", megatron_attention},
                           {kMegatron + "fp8_multi_head_attention", megatron_attention},
                           {kMegatron + "moe_router_padding_for_fp8", megatron_rows}};
  return rules;
}

Decision fp8_precision(const RuleInput& input, bool autocast) {
  const auto kind = fp8_backend(input);
  if (kind == "MSAMP") {
    const auto level = lower_case(input.text(kFp8 + "opt_level"));
    return translated({{"precision.preset", "msamp_" + level}});
  }
  const bool is_delayed = kind == "TE" && !scales_blocks(input);
  JobKeys job{{"precision.compute", "bf16"}, {"precision.autocast", autocast ? "true" : "false"}};
  job.emplace_back("precision.matmul", kind == "AO" ? "fp8_tensor"
                                       : is_delayed ? "fp8_delayed"
                                                    : "mxfp8");
  // Where nothing is said its default is another than ours.
  if (is_delayed) job.emplace_back("precision.fp8_amax", input.text(kFp8 + "amax_compute_algo"));
  return translated(std::move(job), kind == "AO" ? "heads are never rounded; AO leaves the first "
                                                   "linear layer, too: precision.fp8_keep"
                                                 : "");
}

const Rules& fp8_rules() {
  static const Rules rules{{kFp8 + "backend", backend_rule},
                           {kFp8 + "margin", fp8_margin},
                           {kFp8 + "interval", fp8_interval},
                           {kFp8 + "format", fp8_format},
                           {kFp8 + "amax_history_len", fp8_history},
                           {kFp8 + "amax_compute_algo", fp8_amax},
                           {kFp8 + "override_linear_precision", override_products},
                           {kFp8 + "use_autocast_during_eval", during_eval},
                           {kFp8 + "use_mxfp8_block_scaling", block_scaling},
                           {kFp8 + "opt_level", opt_level},
                           {kFp8 + "enable_fsdp_float8_all_gather", gathers},
                           {kFp8 + "pad_inner_dim", pads}};
  return rules;
}

}  // namespace tessera::config::accelerate
