// What several themes of the table build on.
#pragma once

#include "tessera/nn/layers.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {

struct BlockImpl : Own {
  nn::Linear up = child("up", nn::Linear(6, 9, true)), down = child("down", nn::Linear(9, 6, true));
  torch::Tensor forward(torch::Tensor x) { return x + down(up(x).tanh()); }
};
using Block = nn::Hooked<BlockImpl>;

struct MlpImpl : Own {
  nn::Linear first = child("first", nn::Linear(4, 6, true));
  Block block = child("block", Block());
  nn::Linear last = child("last", nn::Linear(6, 3, true));
  torch::Tensor forward(torch::Tensor x) { return last(block(first(x))); }
};

}  // namespace tessera::own_modules
