// Modules and parameters that are used again, by others, at times, frozen, or not at all.
#include "tessera/nn/layers.h"
#include "tests/own_modules/blocks.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;

struct TwiceInARowImpl : MlpImpl {
  torch::Tensor forward(torch::Tensor x) { return last(block(block(block(first(x))))); }
};

struct TwoInputsImpl : MlpImpl {
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    return last(block(first(x)) + block(first(y)).tanh());
  }
};

/// The second use gets what the first one made of other rows of a sequence.
struct CrossedImpl : MlpImpl {
  torch::Tensor forward(torch::Tensor x, torch::Tensor y) {
    const auto a = block(first(x)), b = block(first(y) + a);
    return last(block(a * b) + a);
  }
};

/// Registers a weight that another module has, too.
struct RegistersImpl : Own {
  explicit RegistersImpl(torch::Tensor of_another) {
    weight = register_parameter("weight", of_another);
  }
  torch::Tensor forward(torch::Tensor x) { return x.matmul(weight) + bias; }
  torch::Tensor weight, bias = parameter("bias", {4});
};
using Registers = nn::Hooked<RegistersImpl>;

struct TiedImpl : Own {
  Linear encode = child("encode", Linear(4, 6, true));
  Block block = child("block", Block());
  Registers decode = child("decode", Registers(encode->weight));
  torch::Tensor forward(torch::Tensor x) { return decode(block(encode(x).tanh())); }
};

/// Has the weight of another module's as a member, and says so.
struct BorrowerImpl : Own {
  explicit BorrowerImpl(torch::Tensor weight) : weight(std::move(weight)) {}
  torch::Tensor forward(torch::Tensor x) { return x.matmul(weight) + bias; }
  std::vector<torch::Tensor> borrowed_parameters() const override { return {weight}; }
  torch::Tensor weight, bias = parameter("bias", {4});
};
using Borrower = nn::Hooked<BorrowerImpl>;

struct BorrowedImpl : Own {
  Linear encode = child("encode", Linear(4, 6, true));
  Block block = child("block", Block());
  Borrower decode = child("decode", Borrower(encode->weight));
  torch::Tensor forward(torch::Tensor x) { return decode(block(encode(x).tanh())); }
};

/// A transposed weight, as autoencoders have it: calls the functional with the encoder's.
struct TransposedImpl : Own {
  Linear encode = child("encode", Linear(4, 6)), deeper = child("deeper", Linear(6, 5));
  torch::Tensor bias = parameter("bias", {4});
  torch::Tensor forward(torch::Tensor x) {
    const auto code = deeper(encode(x).sigmoid()).sigmoid();
    return code.matmul(deeper->weight).sigmoid().matmul(encode->weight) + bias;
  }
  std::vector<torch::Tensor> borrowed_parameters() const override {
    return {encode->weight, deeper->weight};
  }
};

/// A parameter of the net that two children's forwards get as an argument.
struct AsArgumentImpl : Own {
  struct ScaleImpl : Own {
    torch::Tensor bias = parameter("bias", {6});
    torch::Tensor forward(torch::Tensor x, torch::Tensor scale) {
      return (x * scale + bias).tanh();
    }
  };
  using Scale = nn::Hooked<ScaleImpl>;
  Linear first = child("first", Linear(4, 6));
  Scale one = child("one", Scale()), two = child("two", Scale());
  Linear last = child("last", Linear(6, 3));
  torch::Tensor scale = parameter("scale", {6});
  torch::Tensor forward(torch::Tensor x) { return last(two(one(first(x), scale), scale)); }
};

void freeze(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) parameter.set_requires_grad(false);
}

struct FrozenWeightImpl : MlpImpl {
  FrozenWeightImpl() { block->up->weight.set_requires_grad(false); }
};
struct FrozenBlockImpl : MlpImpl {
  FrozenBlockImpl() { freeze(*block); }
};
struct FrozenFirstImpl : MlpImpl {
  FrozenFirstImpl() { freeze(*first), freeze(*block); }
};
struct FrozenLastImpl : MlpImpl {
  FrozenLastImpl() { freeze(*last); }
};
struct OnlyBiasesImpl : MlpImpl {
  OnlyBiasesImpl() {
    for (auto& item : named_parameters())
      item.value().set_requires_grad(item.key().ends_with("bias"));
  }
};

struct FrozenEmbeddingImpl : Own {
  nn::Embedding embedding = child("embedding", nn::Embedding(11, 6));
  Block block = child("block", Block());
  Linear last = child("last", Linear(6, 3, true));
  FrozenEmbeddingImpl() { freeze(*embedding); }
  torch::Tensor forward(torch::Tensor ids) { return last(block(embedding(ids).sum(1))); }
};

/// Low-rank updates beside frozen weights.
struct AdapterImpl : Own {
  struct LayerImpl : Own {
    Linear frozen = child("frozen", Linear(6, 6, true));
    torch::Tensor down = parameter("down", {6, 2}), up = parameter("up", {2, 6});
    LayerImpl() { freeze(*frozen); }
    torch::Tensor forward(torch::Tensor x) { return frozen(x) + 0.5 * x.matmul(down).matmul(up); }
  };
  using Layer = nn::Hooked<LayerImpl>;
  Layer block0 = child("block0", Layer()), block1 = child("block1", Layer());
  torch::Tensor forward(torch::Tensor x) { return block1(block0(x).tanh()); }
};

/// A module that no forward uses.
struct UnusedImpl : MlpImpl {
  Linear unused = child("unused", Linear(6, 6, true));
};

/// A parameter of a used module that no forward uses.
struct UnusedParameterImpl : MlpImpl {
  torch::Tensor forward(torch::Tensor x) { return last(block(first(x)) + used); }
  torch::Tensor unused = parameter("unused", {5, 5}), used = parameter("used", {6});
};

struct BranchImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Block block0 = child("block0", Block()), block1 = child("block1", Block());
  Linear last = child("last", Linear(6, 3, true));
  torch::Tensor forward(torch::Tensor x, int64_t step) {
    const auto y = first(x);
    return last(step % 2 == 0 ? block0(y) : block1(y).sin());
  }
};

/// Stochastic depth with the same draw on every rank: the first step runs both blocks, others not.
struct SkippedImpl : BranchImpl {
  torch::Tensor forward(torch::Tensor x, int64_t step) {
    auto y = first(x);
    if (step != 1) y = block0(y);
    if (step < 2) y = block1(y);
    return last(y);
  }
};

/// Runs in another order in every step.
struct ReorderedImpl : BranchImpl {
  torch::Tensor forward(torch::Tensor x, int64_t step) {
    const auto y = first(x);
    return last(step % 2 == 0 ? block1(block0(y)) : block0(block1(y)));
  }
};

struct EarlyExitImpl : BranchImpl {
  torch::Tensor forward(torch::Tensor x, bool early) {
    const auto y = block0(first(x));
    if (early) return last(y);
    return last(block1(y));
  }
};

}  // namespace

std::vector<Case> sharing_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4})).square());
  };
  const auto of_pairs = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4}), rows.randn({4}, 1)).square());
  };
  const auto of_step = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4}), int64_t{rows.step}).square());
  };
  return {
      net_case<MlpImpl>("mlp", {}, squares),
      net_case<MlpImpl>("mlp_without_rows_at_times", {.rows = 1}, squares),
      net_case<MlpImpl>("mlp_many_steps", {.rows = 8, .steps = 12}, squares),
      net_case<TwiceInARowImpl>("used_three_times_in_a_row", {}, squares),
      net_case<TwoInputsImpl>("used_with_two_inputs", {}, of_pairs),
      net_case<CrossedImpl>("uses_that_depend_on_each_other", {}, of_pairs),
      net_case<TiedImpl>("tied_by_registering_twice", {}, squares),
      net_case<BorrowedImpl>("tied_by_borrowing", {}, squares),
      net_case<TransposedImpl>("autoencoder_with_transposed_weights", {}, squares),
      net_case<AsArgumentImpl>("a_parameter_as_argument_of_two_children", {}, squares),
      net_case<FrozenWeightImpl>("one_weight_frozen", {}, squares),
      net_case<FrozenBlockImpl>("a_block_frozen", {}, squares),
      net_case<FrozenFirstImpl>("all_but_the_last_frozen", {}, squares),
      net_case<FrozenLastImpl>("the_last_frozen", {}, squares),
      net_case<OnlyBiasesImpl>("only_biases_trained", {}, squares),
      net_case<FrozenEmbeddingImpl>(
          "embedding_frozen", {},
          [](auto& net, const Rows& rows) { return rows.loss(net(rows.ids(11, {3})).square()); }),
      net_case<AdapterImpl>(
          "low_rank_adapters", {},
          [](auto& net, const Rows& rows) { return rows.loss(net(rows.randn({6})).square()); }),
      net_case<UnusedImpl>("a_module_that_nobody_uses", {}, squares),
      net_case<UnusedParameterImpl>("a_parameter_that_nobody_uses", {}, squares),
      net_case<BranchImpl>("branch_by_step", {}, of_step),
      net_case<SkippedImpl>("blocks_skipped_at_times", {.steps = 4}, of_step),
      net_case<ReorderedImpl>("another_order_in_every_step", {.steps = 4}, of_step),
      net_case<EarlyExitImpl>("early_exit", {.steps = 4},
                              [](auto& net, const Rows& rows) {
                                return rows.loss(net(rows.randn({4}), rows.step % 2 == 1).square());
                              }),
  };
}

}  // namespace tessera::own_modules
