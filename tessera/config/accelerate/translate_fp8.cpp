// Accelerate's mixed_precision fp8 and fp8_config: the recipes of torchao, Transformer Engine and MS-AMP.
#include <fmt/format.h>

#include <utility>

#include "tessera/base/letters.h"
#include "tessera/config/accelerate/translate.h"

namespace tessera::config::accelerate {
namespace {

const std::string kFp8 = "fp8_config.fp8_";

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

}  // namespace

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
