#include "tessera/kernels/activation.h"
#include "tessera/models/gpt_oss/shape.h"
#include "tessera/models/mixture.h"

namespace tessera::models {

std::shared_ptr<LanguageModel> make_gpt_oss(const ModelShape& shape,
                                            const torch::TensorOptions& options) {
  const auto& facts = shape.own.as<gpt_oss::Facts>();
  const auto& names = gpt_oss::mixture_names(shape);
  const kernels::GateClamp clamp{.scale = static_cast<float>(facts.gate_scale),
                                 .limit = static_cast<float>(facts.gate_limit)};
  const auto gated = [clamp](const torch::Tensor& gate, const torch::Tensor& up) {
    return kernels::clamped_swiglu(gate, up, clamp);
  };
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .feed_forward = mixture_plan(shape, names)};
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(
        shape,
        SelfAttentionOptions{.attention = {.window = window_of(shape, layer)}, .sinks = true},
        options,
        {.name = names.mixture,
         .module = make_mixture(shape, names, router_options(shape), options, gated)});
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
