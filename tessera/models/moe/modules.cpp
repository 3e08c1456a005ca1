#include "tessera/models/mixture.h"
#include "tessera/models/moe/shape.h"

namespace tessera::models {
namespace moe {
namespace {

QkNorms norms_of(Kind kind) {
  switch (kind) {
    case Kind::mixtral:
    case Kind::residual:
    case Kind::qwen2:
      return QkNorms::none;
    case Kind::olmoe:
      return QkNorms::all_heads;
    case Kind::qwen3:
      return QkNorms::each_head;
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace
}  // namespace moe

std::shared_ptr<LanguageModel> make_moe(const ModelShape& shape,
                                        const torch::TensorOptions& options) {
  const auto norms = moe::norms_of(moe::kind_of(shape));
  const auto& names = moe::names_of(shape);
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}},
                     .feed_forward = mixture_plan(shape, names),
                     .norms = norms};
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(
        shape,
        SelfAttentionOptions{.attention = {.window = window_of(shape, layer)}, .norms = norms},
        options,
        {.name = names.mixture,
         .module = make_mixture(shape, names, router_options(shape), options)});
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
