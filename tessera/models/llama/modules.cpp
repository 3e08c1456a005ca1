#include "tessera/models/decoder.h"

namespace tessera::models {

std::shared_ptr<LanguageModel> make_llama(const ModelShape& shape,
                                          const torch::TensorOptions& options) {
  const auto norms = shape.qk_norm ? QkNorms::each_head : QkNorms::none;
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}}, .norms = norms};
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(
        shape, {.attention = {.window = window_of(shape, layer)}, .norms = norms}, options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
