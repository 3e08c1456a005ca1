// Layers as users write or take them: convolution, normalisation, recurrence, attention, embedding.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <cmath>

#include "tessera/nn/batch_norm.h"
#include "tessera/nn/convolution.h"
#include "tessera/nn/layers.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using torch::Tensor;

struct ConvBlockImpl : Own {
  nn::Conv2d a = child("a", nn::Conv2d(3, 3, nn::Conv2dOptions{.padding = 1, .with_bias = true}));
  nn::Conv2d b = child("b", nn::Conv2d(3, 3, nn::Conv2dOptions{.padding = 1}));
  Tensor forward(Tensor x) { return x + b(at::relu(a(x))); }
};
using ConvBlock = nn::Hooked<ConvBlockImpl>;

struct ConvNetImpl : Own {
  nn::Conv2d stem = child("stem", nn::Conv2d(2, 3, nn::Conv2dOptions{.stride = 2, .padding = 1}));
  ConvBlock block0 = child("block0", ConvBlock()), block1 = child("block1", ConvBlock());
  Linear head = child("head", Linear(3, 4, true));
  Tensor forward(Tensor x) { return head(block1(block0(stem(x))).mean({2, 3})); }
};

/// Down, and up again by the functional, with the convolutions' own kind of weights.
struct ConvTransposedImpl : Own {
  Tensor down = parameter("down", {3, 2, 2, 2}), up = parameter("up", {3, 2, 2, 2});
  Tensor bias = parameter("bias", {2});
  Tensor forward(Tensor x) {
    const auto code = at::conv2d(x, down, {}, 2).tanh();
    return at::conv_transpose2d(code, up, bias, 2);
  }
};

struct Conv1dImpl : Own {
  struct BlockImpl : Own {
    Tensor weight = parameter("weight", {4, 2, 3}), bias = parameter("bias", {4});
    Tensor forward(Tensor x) {  // grouped, dilated
      return x + at::conv1d(x, weight, bias, 1, 2, 2, 2).tanh();
    }
  };
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor x) { return at::max_pool1d(block1(block0(x)), 2); }
};

struct Conv3dImpl : Own {
  Tensor weight = parameter("weight", {3, 2, 2, 2, 2}), last = parameter("last", {3, 2});
  Tensor forward(Tensor x) { return at::conv3d(x, weight).tanh().mean({2, 3, 4}).matmul(last); }
};

struct BatchNormImpl : Own {
  nn::Conv2d conv = child("conv", nn::Conv2d(2, 3));
  nn::BatchNorm norm = child("norm", nn::BatchNorm(3));
  Linear head = child("head", Linear(3, 4, true));
  BatchNormImpl() { norm->reset(), norm->eval(); }
  Tensor forward(Tensor x) { return head(at::relu(norm(conv(x))).mean({2, 3})); }
};

/// LibTorch's own layers inside of a Hookable.
struct TorchLayersImpl : Own {
  struct BlockImpl : Own {
    torch::nn::Linear up = child("up", torch::nn::Linear(6, 8));
    torch::nn::Linear down = child("down", torch::nn::Linear(8, 6));
    torch::nn::LayerNorm norm =
        child("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    Tensor forward(Tensor x) { return x + down(at::gelu(up(norm(x)))); }
  };
  torch::nn::Embedding words = child("words", torch::nn::Embedding(11, 6));
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor ids) { return block1(block0(words(ids))).mean(1); }
};

struct TorchConvImpl : Own {
  torch::nn::Conv2d conv =
      child("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)));
  torch::nn::GroupNorm norm =
      child("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)));
  torch::nn::BatchNorm2d frozen_norm = child("frozen_norm", torch::nn::BatchNorm2d(4));
  TorchConvImpl() { frozen_norm->eval(); }
  Tensor forward(Tensor x) { return frozen_norm(norm(conv(x))).sigmoid().mean({2, 3}); }
};

struct TorchLstmImpl : Own {
  struct CoreImpl : Own {
    torch::nn::LSTM lstm = child(
        "lstm",
        torch::nn::LSTM(
            torch::nn::LSTMOptions(4, 5).num_layers(2).batch_first(true).bidirectional(true)));
    Tensor forward(Tensor x) { return std::get<0>(lstm->forward(x)); }
  };
  nn::Hooked<CoreImpl> block = child("block", nn::Hooked<CoreImpl>());
  Linear head = child("head", Linear(10, 3, true));
  Tensor forward(Tensor x) { return head(block(x).select(1, -1)); }
};

struct TorchGruCellImpl : Own {
  struct CoreImpl : Own {
    torch::nn::GRUCell cell = child("cell", torch::nn::GRUCell(4, 5));
    Tensor forward(Tensor x, Tensor state) { return cell->forward(x, state); }
  };
  nn::Hooked<CoreImpl> core = child("core", nn::Hooked<CoreImpl>());
  Linear head = child("head", Linear(5, 3, true));
  Tensor forward(Tensor x) {
    Tensor state;  // undefined at first: the cell begins with zeros
    for (int64_t time = 0; time < x.size(1); ++time) state = core(x.select(1, time), state);
    return head(state);
  }
};

struct TorchAttentionImpl : Own {
  struct BlockImpl : Own {
    torch::nn::MultiheadAttention attention =
        child("attention", torch::nn::MultiheadAttention(6, 2));
    Tensor forward(Tensor x) {  // [B, T, D]
      const auto y = x.transpose(0, 1);
      return x + std::get<0>(attention->forward(y, y, y)).transpose(0, 1);
    }
  };
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor x) { return block1(block0(x)); }
};

struct NormsImpl : Own {
  struct BlockImpl : Own {
    nn::LayerNorm layer = child("layer", nn::LayerNorm(6, 1e-5));
    nn::RMSNorm rms = child("rms", nn::RMSNorm(6, 1e-6));
    Tensor weight = parameter("weight", {6}), bias = parameter("bias", {6});
    Tensor forward(Tensor x) {
      const auto y = rms(layer(x).tanh() + x);
      return at::group_norm(y, 2, weight.to(y.dtype()), bias.to(y.dtype()), 1e-3);
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor x) { return block1(block0(first(x))); }
};

struct GruImpl : Own {
  struct CellImpl : Own {
    Linear gates = child("gates", Linear(10, 12, true)), next = child("next", Linear(10, 6, true));
    Tensor forward(Tensor x, Tensor state) {
      const auto both = gates(at::cat({x, state}, -1)).sigmoid().chunk(2, -1);
      const auto made = next(at::cat({x, both[0] * state}, -1)).tanh();
      return both[1] * state + (1 - both[1]) * made;
    }
  };
  nn::Hooked<CellImpl> block = child("block", nn::Hooked<CellImpl>());
  Linear head = child("head", Linear(6, 3, true));
  Tensor forward(Tensor x) {
    auto state = torch::zeros({x.size(0), 6}, x.options());
    auto sum = torch::zeros({}, x.options());
    for (int64_t time = 0; time < x.size(1); ++time) {
      state = block(x.select(1, time), state);
      sum = sum + head(state);
    }
    return sum;
  }
};

/// The cell returns its two states as one tensor.
struct LstmImpl : Own {
  struct CellImpl : Own {
    Tensor ih = parameter("ih", {20, 4}), hh = parameter("hh", {20, 5}),
           bias = parameter("bias", {20});
    Tensor forward(Tensor x, Tensor states) {
      const auto state = states.unbind(0);
      const auto gates = (x.matmul(ih.t()) + state[0].matmul(hh.t()) + bias).chunk(4, 1);
      const auto c = gates[0].sigmoid() * state[1] + gates[1].sigmoid() * gates[2].tanh();
      return at::stack({gates[3].sigmoid() * c.tanh(), c});
    }
  };
  nn::Hooked<CellImpl> lower = child("lower", nn::Hooked<CellImpl>());
  Linear between = child("between", Linear(5, 4, true));
  nn::Hooked<CellImpl> upper = child("upper", nn::Hooked<CellImpl>());
  Tensor forward(Tensor x) {
    auto a = torch::zeros({2, x.size(0), 5}, x.options()), b = a;
    for (int64_t time = 0; time < x.size(1); ++time) {
      a = lower(x.select(1, time), a);
      b = upper(between(a[0]), b);
    }
    return b[0];
  }
};

/// q, k and v are one parameter; a mask is an argument that no gradient goes to.
struct AttentionImpl : Own {
  Tensor qkv = parameter("qkv", {18, 6}), out = parameter("out", {6, 6});
  Tensor forward(Tensor x, Tensor mask) {  // [B, T, D], [B, T, T] bool
    const auto parts = at::linear(x, qkv).chunk(3, -1);
    auto scores = parts[0].matmul(parts[1].transpose(1, 2)) / std::sqrt(6.0);
    scores = scores.masked_fill(mask, -1e9).softmax(-1);
    return x + scores.matmul(parts[2]).matmul(out);
  }
};

struct AttentionNetImpl : Own {
  nn::Embedding words = child("words", nn::Embedding(11, 6));
  nn::Hooked<AttentionImpl> block0 = child("block0", nn::Hooked<AttentionImpl>());
  nn::Hooked<AttentionImpl> block1 = child("block1", nn::Hooked<AttentionImpl>());
  nn::LanguageModelHead head = child("head", nn::LanguageModelHead(6, 11));
  Tensor forward(Tensor ids) {
    const auto later = torch::ones({ids.size(1), ids.size(1)}, torch::kBool).triu(1);
    const auto mask = later.unsqueeze(0).logical_or(ids.eq(0).unsqueeze(1));
    return block1(block0(words(ids), mask), mask);
  }
};

/// An encoder's result is an argument of every block of a decoder.
struct CrossAttentionImpl : Own {
  struct BlockImpl : Own {
    Linear query = child("query", Linear(6, 6)), key = child("key", Linear(6, 6));
    Tensor forward(Tensor x, Tensor memory) {
      const auto scores = query(x).matmul(key(memory).transpose(1, 2)).softmax(-1);
      return x + scores.matmul(memory);
    }
  };
  Linear encode = child("encode", Linear(4, 6, true)), decode = child("decode", Linear(3, 6, true));
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block2 = child("block2", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor from, Tensor to) {
    const auto memory = encode(from).tanh();
    return block2(block1(block0(decode(to), memory), memory), memory);
  }
};

/// Several tables, one of them used twice, with ids that come again.
struct EmbeddingsImpl : Own {
  nn::Embedding users = child("users", nn::Embedding(7, 6)),
                items = child("items", nn::Embedding(13, 6));
  Tensor bias = parameter("bias", {13, 1});
  Tensor forward(Tensor user, Tensor good, Tensor bad) {
    const auto u = users(user);
    const auto score = [&](const Tensor& item) {
      return (u * items(item)).sum(-1) + bias.index_select(0, item).squeeze(1);
    };
    return score(good) - score(bad);
  }
};

struct TiedHeadImpl : Own {
  nn::Embedding words = child("words", nn::Embedding(11, 6));
  Linear middle = child("middle", Linear(6, 6, true));
  nn::LanguageModelHead head = child("head", nn::LanguageModelHead(words->weight));
  Tensor forward(Tensor ids, Tensor targets, double scale) {
    return head(middle(words(ids)).tanh(), targets, scale);
  }
};

}  // namespace

std::vector<Case> layer_cases() {
  const auto images = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({2, 6, 6})).square());
  };
  const auto sequences = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({5, 4})).square());
  };
  return {
      net_case<ConvNetImpl>("residual_convolutions", {}, images),
      net_case<ConvTransposedImpl>("convolution_transposed_by_functional", {}, images),
      net_case<Conv1dImpl>("convolution_1d_grouped_dilated_pooled", {},
                           [](auto& net, const Rows& rows) {
                             return rows.loss(net(rows.randn({4, 8})).square());
                           }),
      net_case<Conv3dImpl>("convolution_3d", {},
                           [](auto& net, const Rows& rows) {
                             return rows.loss(net(rows.randn({2, 4, 4, 4})).square());
                           }),
      net_case<BatchNormImpl>("batch_norm_in_evaluation", {}, images),
      net_case<TorchLayersImpl>(
          "libtorch_linear_layer_norm_embedding", {},
          [](auto& net, const Rows& rows) { return rows.loss(net(rows.ids(11, {4})).square()); }),
      net_case<TorchConvImpl>("libtorch_convolution_and_norms", {.half = false}, images),
      net_case<TorchLstmImpl>("libtorch_lstm", {.half = false}, sequences),
      net_case<TorchGruCellImpl>("libtorch_gru_cell_with_an_undefined_state", {.half = false},
                                 sequences),
      net_case<TorchAttentionImpl>("libtorch_multihead_attention", {},
                                   [](auto& net, const Rows& rows) {
                                     return rows.loss(net(rows.randn({5, 6})).square());
                                   }),
      net_case<NormsImpl>("layer_rms_and_group_norm", {},
                          [](auto& net, const Rows& rows) {
                            return rows.loss((net(rows.randn({4})) - rows.randn({6}, 1)).square());
                          }),
      net_case<GruImpl>("gru_by_hand", {}, sequences),
      net_case<LstmImpl>("lstm_by_hand", {}, sequences),
      net_case<AttentionNetImpl>("attention_by_hand_with_a_mask", {},
                                 [](auto& net, const Rows& rows) {
                                   const auto ids = rows.ids(11, {6});
                                   const auto hidden = net(ids.narrow(1, 0, 5));
                                   return net->head(hidden, ids.narrow(1, 1, 5).contiguous(),
                                                    1.0 / static_cast<double>(rows.total));
                                 }),
      net_case<CrossAttentionImpl>(
          "one_memory_for_all_blocks", {},
          [](auto& net, const Rows& rows) {
            return rows.loss(net(rows.randn({5, 4}), rows.randn({2, 3}, 1)).square());
          }),
      net_case<EmbeddingsImpl>("embeddings_of_ids_that_repeat", {},
                               [](auto& net, const Rows& rows) {
                                 return rows.loss(at::softplus(-net(
                                     rows.ids(7, {}), rows.ids(13, {}, 1), rows.ids(13, {}, 2))));
                               }),
      net_case<TiedHeadImpl>("a_tied_head_that_is_the_loss", {},
                             [](auto& net, const Rows& rows) {
                               return net(rows.ids(11, {4}), rows.ids(11, {4}, 1),
                                          1.0 / static_cast<double>(rows.total));
                             }),
  };
}

}  // namespace tessera::own_modules
