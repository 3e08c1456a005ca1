// A stored model as a folder whose linear layers are quantised, as transformers with bitsandbytes loads it.
#pragma once

#include "tessera/inference/request.h"

namespace tessera::inference {

/// Writes `request.model` as the Hugging Face folder `request.other`, which appears when it is whole: the linear layers of its
/// blocks as `request.weights` says, in bitsandbytes' tensors (`X.weight` with .absmax, .quant_map, nested states and
/// .quant_state.bitsandbytes__nf4; int8: X.SCB), quantised as they are read, and what is left as it is
/// stored; quantization_config in config.json. checkpoint/formats/bitsandbytes.h reads it. Tokenizer files are
/// those in the folder `request.tokenizer`, the template is the file `request.chat_template`. Memory: a layer's
/// codes. UserError: as checkpoint::export_hf; a model that is quantised already or keeps its weights the other way around (GPT-2).
void export_quantised(const Request& request);

}  // namespace tessera::inference
