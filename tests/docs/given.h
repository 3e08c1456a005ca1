// What the pages' C++ blocks speak of without saying so; blocks.py makes a function of each.
#pragma once

#include <torch/optim/adamw.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/chat/assistant.h"
#include "tessera/chat/load.h"
#include "tessera/memory/activation_checkpointing.h"
#include "tessera/nn/attention.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/parallel/pipeline/pipeline.h"
#include "tessera/parallel/tensor/tensor_parallel.h"
#include "tessera/precision/loss_scaler.h"
#include "tessera/records/reader.h"
#include "tessera/schedule/generate.h"
#include "tessera/text/tokenizer.h"
#include "tessera/train/accelerator.h"
#include "tessera/train/save_state.h"

using namespace tessera;

struct BlockImpl : nn::Hookable {
  torch::Tensor forward(torch::Tensor x) { return x; }
};
using Block = nn::Hooked<BlockImpl>;

struct NetImpl : nn::Hookable {
  torch::Tensor forward(torch::Tensor x) { return x; }
  std::vector<Block> blocks;
};
using Net = nn::Hooked<NetImpl>;

torch::Tensor loss(const torch::Tensor& prediction);
torch::Tensor loss(const torch::Tensor& prediction, const torch::Tensor& target);
torch::Tensor first(const torch::Tensor& input);
torch::Tensor middle(const torch::Tensor& input);
torch::Tensor last(const torch::Tensor& input);
void use(const nlohmann::ordered_json& value);
void use(const chat::Span& span);
