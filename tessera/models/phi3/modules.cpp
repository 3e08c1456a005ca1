#include "tessera/models/decoder.h"
#include "tessera/models/spec.h"

namespace tessera::models {

std::shared_ptr<LanguageModel> make_phi3(const ModelShape& shape,
                                         const torch::TensorOptions& options) {
  const auto width = spec_of(shape.family).rotary_width(shape);
  DecoderParts parts{.tables = {{width, rotary_options(shape)}}};
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(shape, {.attention = {.window = window_of(shape, layer)}}, options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
