// Shapes and dtypes of parameters and buffers, and what users make of views of them.
#include "tessera/nn/layers.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using torch::Tensor;

struct ShapesImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Tensor scalar = parameter("scalar", {}), one = parameter("one", {1});
  Tensor cube = parameter("cube", {2, 3, 6}), four = parameter("four", {1, 2, 3, 1});
  Tensor five = parameter("five", {2, 1, 3, 1, 1}), odd = parameter("odd", {37});
  Tensor forward(Tensor x) {
    const auto y = first(x) * scalar + one;
    const auto z = at::einsum("bi,jki->bjk", {y, cube});  // [B, 2, 3]
    return (z * four.squeeze(3) + five.reshape({2, 3})).sin() * odd.mean() + odd[3];
  }
};

/// Every unit has parameters of one element only.
struct ScalarsImpl : Own {
  struct ShiftImpl : Own {
    Tensor scale = parameter("scale", {}), shift = parameter("shift", {});
    Tensor forward(Tensor x) { return (x * scale + shift).sin(); }
  };
  nn::Hooked<ShiftImpl> block0 = child("block0", nn::Hooked<ShiftImpl>());
  nn::Hooked<ShiftImpl> block1 = child("block1", nn::Hooked<ShiftImpl>());
  Tensor forward(Tensor x) { return block1(block0(x)); }
};

struct EmptyImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Tensor empty = parameter("empty", {0, 6}), last = parameter("last", {6, 3});
  Tensor forward(Tensor x) { return at::cat({first(x), empty}).matmul(last); }
};

/// A module that has an empty parameter and no other.
struct OnlyEmptyImpl : Own {
  struct NothingImpl : Own {
    Tensor empty = parameter("empty", {0});
    Tensor forward(Tensor x) { return x + empty.sum(); }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<NothingImpl> nothing = child("nothing", nn::Hooked<NothingImpl>());
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor x) { return last(nothing(first(x)).tanh()); }
};

struct DoubleBesideFloatImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Tensor precise = parameter("precise", {6, 3}, torch::kFloat64);
  Tensor scale = parameter("scale", {3});
  Tensor forward(Tensor x) {
    return first(x).tanh().to(torch::kFloat64).matmul(precise.to(torch::kFloat64)) * scale;
  }
};

struct AllDoubleImpl : Own {
  Tensor first = parameter("first", {4, 6}, torch::kFloat64);
  Tensor last = parameter("last", {6, 3}, torch::kFloat64);
  Tensor forward(Tensor x) { return x.to(torch::kFloat64).matmul(first).tanh().matmul(last); }
};

struct ComplexImpl : Own {
  Tensor turn = parameter("turn", {4}, torch::kComplexFloat);
  Linear last = child("last", Linear(4, 3, true));
  Tensor forward(Tensor x) { return last(at::real(x * turn) + at::imag(x * turn * turn)); }
};

/// Buffers: integers that count, a constant mask, a running value that depends on weights alone.
struct BuffersImpl : Own {
  Linear first = child("first", Linear(4, 6, true)), last = child("last", Linear(6, 3, true));
  Tensor calls = register_buffer("calls", torch::zeros({}, torch::kInt64));
  Tensor mask = register_buffer("mask", torch::tensor({1, 0, 1, 1, 0, 1}).to(torch::kBool));
  Tensor forward(Tensor x) {
    calls += 1;
    return last(first(x).masked_fill(mask.logical_not(), 0).tanh()) / calls;
  }
};

/// Spectral norm: one iteration in each training forward.
struct SpectralImpl : Own {
  struct LayerImpl : Own {
    Tensor weight = parameter("weight", {6, 6});
    Tensor u = register_buffer("u", torch::ones({6}) / 3);
    Tensor forward(Tensor x) {
      Tensor v;
      {
        const torch::NoGradGuard no_grad;
        const auto values = weight.to(torch::kFloat32);
        v = values.t().mv(u);
        v = v / v.norm();
        const auto next = values.mv(v);
        u.copy_(next / next.norm());
      }
      const auto sigma = u.clone().to(weight.dtype()).dot(weight.mv(v.to(weight.dtype())));
      return x.matmul((weight / sigma).t());
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<LayerImpl> block0 = child("block0", nn::Hooked<LayerImpl>());
  nn::Hooked<LayerImpl> block1 = child("block1", nn::Hooked<LayerImpl>());
  Tensor forward(Tensor x) { return block1(block0(first(x)).tanh()); }
};

struct WeightNormImpl : Own {
  struct LayerImpl : Own {
    Tensor v = parameter("v", {6, 6}), g = parameter("g", {6, 1}), bias = parameter("bias", {6});
    Tensor forward(Tensor x) {
      return x.matmul((g * v / v.norm(2, 1, /*keepdim=*/true)).t()) + bias;
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<LayerImpl> block0 = child("block0", nn::Hooked<LayerImpl>());
  nn::Hooked<LayerImpl> block1 = child("block1", nn::Hooked<LayerImpl>());
  Tensor forward(Tensor x) { return block1(block0(first(x)).tanh()); }
};

/// A table of positions: its module returns a slice, the net adds another.
struct PositionsImpl : Own {
  struct TableImpl : Own {
    Tensor rows = parameter("rows", {8, 6});
    Tensor forward(int64_t begin, int64_t count) { return rows.slice(0, begin, begin + count); }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<TableImpl> table = child("table", nn::Hooked<TableImpl>());
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor x, int64_t from) {
    return last((first(x) + table(from, x.size(1)) * table(0, x.size(1))).tanh());
  }
};

/// A module that returns its whole parameter: a query that is learnt, a token that is prepended.
struct TokenImpl : Own {
  struct LearntImpl : Own {
    Tensor value = parameter("value", {1, 1, 6});
    Tensor forward() { return value; }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<LearntImpl> token = child("token", nn::Hooked<LearntImpl>());
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor x) {
    const auto tokens = at::cat({token().expand({x.size(0), -1, -1}), first(x)}, 1);
    return last(tokens.softmax(1).cumsum(1)).select(1, 0);
  }
};

struct ViewsImpl : Own {
  struct BlockImpl : Own {
    Tensor all = parameter("all", {4, 6, 6}), flat = parameter("flat", {42});
    Tensor forward(Tensor x) {
      const auto chunks = all.chunk(2);
      const auto w = flat.narrow(0, 0, 36).view({6, 6});
      const auto bias = flat.slice(0, 36).expand({x.size(0), 6});
      auto y = x.matmul(all.select(0, 0)).tanh() + x.matmul(chunks[1].sum(0));
      y = y + x.matmul(w.t()) + bias;
      return y * all[1].diagonal() + all.transpose(0, 2).index({0, 0})[3];
    }
  };
  nn::Hooked<BlockImpl> block0 = child("block0", nn::Hooked<BlockImpl>());
  nn::Hooked<BlockImpl> block1 = child("block1", nn::Hooked<BlockImpl>());
  Tensor forward(Tensor x) { return block1(block0(x).tanh()); }
};

/// Makes a weight for others.
struct HyperImpl : Own {
  struct MakerImpl : Own {
    Tensor code = parameter("code", {5});
    Linear up = child("up", Linear(5, 24, true));
    Tensor forward() { return up(code.tanh()).view({6, 4}); }
  };
  nn::Hooked<MakerImpl> maker = child("maker", nn::Hooked<MakerImpl>());
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor x) {
    const auto weight = maker();
    return last(at::linear(at::linear(x.to(weight.dtype()), weight).tanh().matmul(weight), weight));
  }
};

/// Each row makes the weight it is multiplied with.
struct FastWeightsImpl : Own {
  Linear first = child("first", Linear(4, 6, true)), maker = child("maker", Linear(4, 18, true));
  Tensor forward(Tensor x) {
    return at::bmm(maker(x).view({-1, 3, 6}), first(x).tanh().unsqueeze(2)).squeeze(2);
  }
};

/// Keeps from one forward to the next what depends on no parameter.
struct CacheImpl : Own {
  Linear first = child("first", Linear(4, 6, true)), last = child("last", Linear(6, 3, true));
  Tensor cached;
  Tensor forward(Tensor x) {
    if (!cached.defined()) cached = torch::arange(6).to(torch::kFloat32) / 6;
    return last((first(x) * cached.to(x.dtype())).tanh());
  }
};

/// Registered after the constructor, as nets that look at their data first do.
struct LateImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Tensor late;
  std::vector<Linear> layers;
  void complete(int64_t count) {
    late = parameter("late", {6});
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(child("block" + std::to_string(i), Linear(6, 6, true)));
    }
  }
  Tensor forward(Tensor x) {
    auto y = first(x) + late;
    for (auto& layer : layers) y = y + layer(y).tanh();
    return y;
  }
};

/// Parameters that do not lie in memory as they are shaped.
struct StridedImpl : Own {
  Tensor turned = register_parameter("turned", torch::empty({6, 4}).t());
  Tensor spread = register_parameter("spread", torch::empty({6, 6}).slice(1, 0, 6, 2));
  Tensor forward(Tensor x) { return x.matmul(turned).tanh().matmul(spread); }
};

/// A sparse choice of rows by hand.
struct BagImpl : Own {
  nn::Embedding words = child("words", nn::Embedding(11, 6));
  Linear last = child("last", Linear(6, 3, true));
  Tensor forward(Tensor ids) {
    const auto mask = ids.ne(0).unsqueeze(-1);
    const auto rows = words(ids);
    const auto count = mask.sum(1).clamp_min(1);
    return last((rows * mask).sum(1) / count.to(rows.dtype()));
  }
};

}  // namespace

std::vector<Case> parameter_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4})).square());
  };
  const auto of_six = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({6})).square());
  };
  const auto of_ids = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.ids(11, {5})).square());
  };
  const auto of_sequences = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({3, 4})).square());
  };
  Case late = net_case<LateImpl>("registered_after_the_constructor", {}, squares);
  late.make = [] {
    auto net = std::make_shared<LateImpl>();
    net->complete(3);
    return std::vector<Net>{net};
  };
  return {
      net_case<ShapesImpl>("parameters_of_0_to_5_dimensions", {}, squares),
      net_case<ScalarsImpl>("scalars_alone", {}, of_six),
      net_case<EmptyImpl>("an_empty_parameter", {}, squares),
      net_case<OnlyEmptyImpl>("a_unit_of_an_empty_parameter", {}, squares),
      net_case<DoubleBesideFloatImpl>("double_beside_float", {}, squares),
      net_case<AllDoubleImpl>("double_alone", {.half = false, .tolerance = 1e-9}, squares),
      net_case<ComplexImpl>("a_complex_parameter",
                            {.half = false, .left_out = {{"refused when it is sharded, by name"}}},
                            squares),
      net_case<BuffersImpl>("buffers_of_integers_and_bools", {}, squares),
      net_case<SpectralImpl>("spectral_norm_by_hand", {.recompute = false}, squares),
      net_case<WeightNormImpl>("weight_norm_by_hand", {}, squares),
      net_case<PositionsImpl>(
          "slices_of_a_table", {},
          [](auto& net, const Rows& rows) {
            return rows.loss(net(rows.randn({3, 4}), int64_t{rows.step}).square());
          }),
      net_case<TokenImpl>("a_module_that_returns_its_parameter", {}, of_sequences),
      net_case<ViewsImpl>("select_chunk_narrow_expand_diagonal", {}, of_six),
      net_case<HyperImpl>("a_module_makes_the_weight_of_others", {}, squares),
      net_case<FastWeightsImpl>("each_row_makes_its_weight", {}, squares),
      net_case<CacheImpl>("a_constant_is_kept", {}, squares),
      late,
      net_case<StridedImpl>("parameters_with_strides", {}, squares),
      net_case<BagImpl>("bag_of_words_with_padding", {}, of_ids),
  };
}

}  // namespace tessera::own_modules
