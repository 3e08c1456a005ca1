// How modules are put together: nested, in containers, in loops, across each other, by themselves.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "tessera/nn/layers.h"
#include "tests/own_modules/blocks.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using torch::Tensor;

template <typename Impl>
nn::Hooked<Impl> held(const std::shared_ptr<torch::nn::Module>& module) {
  return nn::Hooked<Impl>(std::dynamic_pointer_cast<Impl>(module));
}

/// Three deep, with parameters of its own at every depth, before and after what it calls.
struct NestedImpl : Own {
  struct InnerImpl : Own {
    Tensor scale = parameter("scale", {6});
    Linear linear = child("linear", Linear(6, 6, true));
    Tensor forward(Tensor x) { return linear(x * scale).tanh() * scale; }
  };
  struct MiddleImpl : Own {
    Tensor before = parameter("before", {6, 6});
    nn::Hooked<InnerImpl> one = child("one", nn::Hooked<InnerImpl>());
    nn::Hooked<InnerImpl> two = child("two", nn::Hooked<InnerImpl>());
    Tensor after = parameter("after", {6});
    Tensor forward(Tensor x) { return two(one(x.matmul(before)) + x) * after; }
  };
  Tensor shift = parameter("shift", {6});
  nn::Hooked<MiddleImpl> block0 = child("block0", nn::Hooked<MiddleImpl>());
  nn::Hooked<MiddleImpl> block1 = child("block1", nn::Hooked<MiddleImpl>());
  Tensor forward(Tensor x) { return block1(block0(x + shift)) * shift; }
};

struct ListImpl : Own {
  torch::nn::ModuleList layers;
  Linear last = child("last", Linear(6, 3, true));
  ListImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Block());
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = held<BlockImpl>(layer)(x);
    return last(x);
  }
};

struct DictImpl : Own {
  using Heads = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
  torch::nn::ModuleDict heads =
      child("heads", torch::nn::ModuleDict(Heads{{"plus", Linear(6, 3, true).ptr()},
                                                 {"times", Linear(6, 3, true).ptr()}}));
  Block block = child("block", Block());
  Tensor forward(Tensor x) {
    const auto y = block(x);
    auto plus = held<nn::LinearImpl>((*heads)["plus"]);
    auto times = held<nn::LinearImpl>((*heads)["times"]);
    return plus(y) + plus(y).tanh() * times(y);
  }
};

/// LibTorch's Sequential of LibTorch's layers belongs to the Hookable around it.
struct SequentialImpl : Own {
  struct StageImpl : Own {
    torch::nn::Sequential layers = child(
        "layers",
        torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 6)));
    Tensor forward(Tensor x) { return layers->forward(x); }
  };
  nn::Hooked<StageImpl> block0 = child("block0", nn::Hooked<StageImpl>());
  nn::Hooked<StageImpl> block1 = child("block1", nn::Hooked<StageImpl>());
  Tensor forward(Tensor x) { return block1(block0(x)); }
};

/// Hookables in a Sequential, each called through a holder.
struct HeldSequentialImpl : Own {
  torch::nn::Sequential layers = child("layers", torch::nn::Sequential());
  HeldSequentialImpl() {
    for (int i = 0; i < 3; ++i) layers->push_back(Block().ptr());
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i) x = held<BlockImpl>(layers->ptr(i))(x);
    return x;
  }
};

struct UNetImpl : Own {
  std::vector<Linear> down, up;
  UNetImpl() {
    for (int i = 0; i < 3; ++i) {
      down.push_back(child("down" + std::to_string(i), Linear(6, 6, true)));
    }
    for (int i = 0; i < 3; ++i) up.push_back(child("up" + std::to_string(i), Linear(12, 6, true)));
  }
  Tensor forward(Tensor x) {
    std::vector<Tensor> kept;
    for (auto& layer : down) kept.push_back(x = layer(x).tanh());
    for (auto& layer : up) {
      x = layer(at::cat({x, kept.back()}, 1)).tanh();
      kept.pop_back();
    }
    return x;
  }
};

struct DenseNetImpl : Own {
  struct LayerImpl : Own {
    explicit LayerImpl(int64_t in) : linear(child("linear", Linear(in, 4, true))) {}
    Tensor forward(Tensor x) { return at::cat({x, linear(x).tanh()}, 1); }
    Linear linear;
  };
  std::vector<nn::Hooked<LayerImpl>> blocks;
  DenseNetImpl() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(child("block" + std::to_string(i), nn::Hooked<LayerImpl>(6 + 4 * i)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
};

/// Branches that part and meet again; registered in another order than called.
struct BranchesImpl : Own {
  Linear last = child("last", Linear(6, 3, true));
  Block block2 = child("block2", Block()), block0 = child("block0", Block());
  Block block1 = child("block1", Block());
  Linear first = child("first", Linear(6, 6, true));
  Tensor forward(Tensor x) {
    const auto y = first(x);
    const auto a = block0(y), b = block1(y), c = block2(a * b);
    return last(c + a - block1(c).tanh());
  }
};

struct EncoderImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Block block = child("block", Block());
  Tensor forward(Tensor x) { return block(first(x).tanh()); }
};
using Encoder = nn::Hooked<EncoderImpl>;

struct SiameseImpl : Own {
  Encoder encoder = child("encoder", Encoder());
  Linear metric = child("metric", Linear(6, 3));
  Tensor forward(Tensor a, Tensor b) { return metric((encoder(a) - encoder(b)).abs()); }
};

struct TripletImpl : Own {
  Encoder encoder = child("encoder", Encoder());
  Tensor forward(Tensor anchor, Tensor same, Tensor other) {
    const auto a = encoder(anchor);
    const auto near = (a - encoder(same)).square().sum(1);
    return (near - (a - encoder(other)).square().sum(1) + 1).clamp_min(0);
  }
};

/// Contrasts rows with each other inside of a row's own sequence, with a learnt temperature.
struct ContrastImpl : Own {
  Encoder left = child("left", Encoder()), right = child("right", Encoder());
  Tensor temperature = parameter("temperature", {});
  Tensor forward(Tensor x, Tensor y) {  // [B, T, 4]
    const auto a = left(x).tanh(), b = right(y).tanh();
    const auto scores = a.matmul(b.transpose(1, 2)) * temperature.exp();
    return scores.logsumexp(2).sum(1) - scores.diagonal(0, 1, 2).sum(1);
  }
};

struct MixtureImpl : Own {
  Linear gate = child("gate", Linear(6, 3, true));
  std::vector<Block> blocks;
  MixtureImpl() {
    for (int i = 0; i < 3; ++i) blocks.push_back(child("block" + std::to_string(i), Block()));
  }
  Tensor forward(Tensor x, bool hard) {
    auto weights = gate(x).softmax(1);
    if (hard) weights = weights * weights.ge(std::get<0>(weights.max(1, true)));
    auto sum = at::zeros_like(x);
    for (size_t i = 0; i < blocks.size(); ++i) {
      sum = sum + weights.narrow(1, static_cast<int64_t>(i), 1) * blocks[i](x);
    }
    return sum;
  }
};

/// Each expert runs on the rows that chose it; where none of this process's did, it is called with
/// none, or, as plain LibTorch allows, not at all.
struct RoutedImpl : Own {
  virtual bool calls_all() const { return true; }
  Linear gate = child("gate", Linear(6, 3, true));
  std::vector<Block> blocks;
  RoutedImpl() {
    for (int i = 0; i < 3; ++i) blocks.push_back(child("block" + std::to_string(i), Block()));
  }
  Tensor forward(Tensor x) {
    const auto weights = gate(x).softmax(1);
    const auto choice = weights.argmax(1);
    auto result = at::zeros_like(x);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto expert = static_cast<int64_t>(i);
      const auto rows = choice.eq(expert).nonzero().squeeze(1);
      if (rows.numel() == 0 && !calls_all()) continue;
      const auto made = blocks[i](x.index_select(0, rows));
      const auto share = weights.index_select(0, rows).narrow(1, expert, 1);
      result = result.index_add(0, rows, made * share);
    }
    return result;
  }
};

struct RoutedWhereNeededImpl : RoutedImpl {
  bool calls_all() const override { return false; }
};

/// Calls itself: a tree of calls of one module.
struct TreeImpl : Own {
  struct NodeImpl : Own {
    Linear leaf = child("leaf", Linear(6, 6, true)), join = child("join", Linear(12, 6, true));
    Tensor own = parameter("own", {6});
    Tensor forward(Tensor x, int64_t depth) {
      if (depth == 0) return leaf(x).tanh() * own;
      auto self = held<NodeImpl>(shared_from_this());
      return join(at::cat({self(x, depth - 1), self(x * 0.5, depth - 1)}, 1)) + own;
    }
  };
  nn::Hooked<NodeImpl> block = child("block", nn::Hooked<NodeImpl>());
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor x) { return last(block(x, int64_t{2})); }
};

/// One module that two parents registered, and that the net calls itself.
struct SharedChildImpl : Own {
  struct ParentImpl : Own {
    explicit ParentImpl(Linear common) : common(child("common", common)) {}
    Linear common, own = child("own", Linear(6, 6, true));
    Tensor forward(Tensor x) { return own(common(x).tanh()) + x; }
  };
  Linear common = Linear(6, 6, true);
  nn::Hooked<ParentImpl> block0 = child("block0", nn::Hooked<ParentImpl>(common));
  nn::Hooked<ParentImpl> block1 = child("block1", nn::Hooked<ParentImpl>(common));
  Tensor forward(Tensor x) { return block1(common(block0(x))); }
};

/// Holds a sibling that it calls, but the net owns.
struct SiblingImpl : Own {
  struct CallerImpl : Own {
    explicit CallerImpl(Block sibling) : sibling(std::move(sibling)) {}
    Block sibling;
    Linear own = child("own", Linear(6, 6, true));
    Tensor forward(Tensor x) { return own(sibling(x).tanh()) * sibling(x * 2); }
  };
  Block callee = child("callee", Block());
  nn::Hooked<CallerImpl> block0 = child("block0", nn::Hooked<CallerImpl>(callee));
  nn::Hooked<CallerImpl> block1 = child("block1", nn::Hooked<CallerImpl>(callee));
  Tensor forward(Tensor x) { return block1(block0(callee(x))); }
};

/// Calls what is in a std::function, a base class and a pointer.
struct IndirectImpl : Own {
  struct BaseImpl : Own {
    virtual Tensor made(Tensor x) = 0;
    Tensor forward(Tensor x) { return made(std::move(x)); }
  };
  struct SinImpl : BaseImpl {
    Linear linear = child("linear", Linear(6, 6, true));
    Tensor made(Tensor x) override { return linear(x).sin(); }
  };
  struct ScaledImpl : BaseImpl {
    Tensor scale = parameter("scale", {6});
    Tensor made(Tensor x) override { return x * scale; }
  };
  std::vector<std::shared_ptr<BaseImpl>> layers{
      std::make_shared<SinImpl>(), std::make_shared<ScaledImpl>(), std::make_shared<SinImpl>()};
  IndirectImpl() {
    for (size_t i = 0; i < layers.size(); ++i) {
      register_module("block" + std::to_string(i), layers[i]);
    }
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : layers) x = x + nn::Hooked<BaseImpl>(layer)(x);
    return x;
  }
};

/// A fixed point by repeated calls; gradients flow through the last alone.
struct FixedPointImpl : Own {
  Linear in = child("in", Linear(6, 6, true));
  Block block = child("block", Block());
  Tensor forward(Tensor x) {
    const auto y = in(x);
    auto state = at::zeros_like(y);
    {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 4; ++i) state = (block(state) * 0.3 + y).tanh();
    }
    return (block(state) * 0.3 + y).tanh();
  }
};

/// Runs as many layers as the step says, as growing nets have.
struct GrowingImpl : Own {
  std::vector<Block> blocks;
  Linear last = child("last", Linear(6, 3, true));
  GrowingImpl() {
    for (int i = 0; i < 4; ++i) blocks.push_back(child("block" + std::to_string(i), Block()));
  }
  Tensor forward(Tensor x, int64_t depth) {
    for (int64_t i = 0; i <= depth; ++i) x = blocks[static_cast<size_t>(i)](x);
    return last(x);
  }
};

}  // namespace

std::vector<Case> structure_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({6})).square());
  };
  const auto of_step = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({6}), int64_t{rows.step}).square());
  };
  return {
      net_case<NestedImpl>("three_deep_with_parameters_at_each_depth", {}, squares),
      net_case<ListImpl>("module_list", {}, squares),
      net_case<DictImpl>("module_dict", {}, squares),
      net_case<SequentialImpl>("libtorch_sequential_in_a_hookable", {}, squares),
      net_case<HeldSequentialImpl>("hookables_of_a_sequential_by_holders", {}, squares),
      net_case<UNetImpl>("skip_connections_of_a_unet", {}, squares),
      net_case<DenseNetImpl>("concatenations_of_a_dense_net", {}, squares),
      net_case<BranchesImpl>("branches_registered_in_another_order", {}, squares),
      net_case<SiameseImpl>("siamese", {},
                            [](auto& net, const Rows& rows) {
                              const auto y = net(rows.randn({4}), rows.randn({4}, 1));
                              return rows.loss(y.square());
                            }),
      net_case<TripletImpl>("triplets", {},
                            [](auto& net, const Rows& rows) {
                              return rows.loss(
                                  net(rows.randn({4}), rows.randn({4}, 1), rows.randn({4}, 2)));
                            }),
      net_case<ContrastImpl>("contrast_with_a_learnt_temperature", {},
                             [](auto& net, const Rows& rows) {
                               return rows.loss(net(rows.randn({3, 4}), rows.randn({3, 4}, 1)));
                             }),
      net_case<MixtureImpl>("mixture_with_soft_gates", {},
                            [](auto& net, const Rows& rows) {
                              return rows.loss(net(rows.randn({6}), false).square());
                            }),
      net_case<MixtureImpl>("mixture_with_hard_gates", {.half = false},
                            [](auto& net, const Rows& rows) {
                              return rows.loss(net(rows.randn({6}), true).square());
                            }),
      net_case<RoutedImpl>("experts_on_the_rows_that_chose_them", {.half = false}, squares),
      net_case<RoutedWhereNeededImpl>(
          "experts_called_where_rows_chose_them",
          {.half = false,
           .left_out =
               {{"documented: every rank calls the same units; a DistError tells who did not",
                 [](const Setting& setting) {
                   return setting.num_ranks > 1 &&
                          setting.options.unit.placement != parallel::Placement::replicate;
                 }}}},
          squares),
      net_case<TreeImpl>("a_module_that_calls_itself", {}, squares),
      net_case<SharedChildImpl>("a_child_of_two_parents", {}, squares),
      net_case<SiblingImpl>("siblings_that_call_each_other", {}, squares),
      net_case<IndirectImpl>("calls_through_a_base_class", {}, squares),
      net_case<FixedPointImpl>("fixed_point_with_one_gradient_step", {}, squares),
      net_case<GrowingImpl>("a_net_that_grows", {.steps = 4}, of_step),
  };
}

}  // namespace tessera::own_modules
