#include "tessera/models/decoder.h"
#include "tessera/models/smollm3/shape.h"

namespace tessera::models {

std::shared_ptr<LanguageModel> make_smollm3(const ModelShape& shape,
                                            const torch::TensorOptions& options) {
  DecoderParts parts{.tables = {{shape.head_dim, rotary_options(shape)}}};
  const auto& rotates = shape.own.as<smollm3::Facts>().rotates;
  parts.make_block = [&](int64_t layer) {
    return make_pre_norm_block(shape, {.rotates = rotates.at(layer)}, options);
  };
  return std::make_shared<Decoder>(shape, std::move(parts), options);
}

}  // namespace tessera::models
