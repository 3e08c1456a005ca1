// How gradients flow, what losses are made of, and what a forward may get and return.
#include <torch/csrc/autograd/custom_function.h>

#include <exception>
#include <optional>
#include <thread>

#include "tessera/nn/layers.h"
#include "tests/own_modules/blocks.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using torch::Tensor;

struct WideMlpImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Block block = child("block", Block());
  Linear last = child("last", Linear(6, 5, true));
  Tensor forward(Tensor x) { return last(block(first(x))); }
};

struct StoppedImpl : WideMlpImpl {
  Tensor forward(Tensor x) {
    const auto y = first(x);
    return last(block(y.detach()) * y + block(y).detach());
  }
};

struct StraightThroughImpl : WideMlpImpl {
  Tensor forward(Tensor x) {
    const auto y = block(first(x));
    return last(y + (y.sign() - y).detach());
  }
};

/// A step function whose gradient is made up.
struct Step : torch::autograd::Function<Step> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x.gt(0).to(x.dtype());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] / (1 + context->get_saved_variables()[0].abs())};
  }
};
struct CustomFunctionImpl : WideMlpImpl {
  Tensor forward(Tensor x) { return last(Step::apply(block(first(x)))); }
};

/// A target from the net's own block, without grad mode, within the same forward; before or after.
struct TargetImpl : WideMlpImpl {
  Tensor forward(Tensor x, bool target_first) {
    const auto y = first(x);
    Tensor target;
    const auto make = [&] {
      const torch::NoGradGuard no_grad;
      target = block(y * 0.9);
    };
    if (target_first) make();
    const auto made = block(y);
    if (!target_first) make();
    return last(made - target);
  }
};

/// The blocks below work without grad mode in some steps, as in gradual unfreezing.
struct UnfreezingImpl : WideMlpImpl {
  Tensor forward(Tensor x, bool frozen) {
    Tensor y;
    {
      const torch::AutoGradMode mode(!frozen);
      y = block(first(x));
    }
    return last(y);
  }
};

struct ChoosesImpl : Own {  ///< returns numbers of rows: nothing a gradient could reach
  Linear scores = child("scores", Linear(4, 7, true));
  Tensor forward(Tensor x) { return scores(x).argmax(-1); }
};
struct IntegersBetweenImpl : Own {
  nn::Hooked<ChoosesImpl> chooses = child("chooses", nn::Hooked<ChoosesImpl>());
  nn::Embedding rows = child("rows", nn::Embedding(7, 6));
  Linear last = child("last", Linear(6, 5, true));
  Tensor forward(Tensor x) { return last(rows(chooses(x))); }
};

struct TwoHeadsImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  Block block = child("block", Block());
  Linear left = child("left", Linear(6, 5, true)), right = child("right", Linear(6, 2, true));
  Tensor forward(Tensor x) { return block(first(x)); }
};

struct DroppedOutputImpl : WideMlpImpl {  ///< what a module computed is used by nobody
  Linear other = child("other", Linear(6, 6, true));
  Tensor forward(Tensor x) {
    const auto y = first(x);
    const auto dropped = other(y);
    return last(block(y));
  }
};

/// A part of the loss is left on the module, as balance losses of experts are.
struct SideImpl : Own {
  Linear gate = child("gate", Linear(6, 3, true)), up = child("up", Linear(6, 6, true));
  Tensor side;
  Tensor forward(Tensor x) {
    side = gate(x).softmax(-1).square();
    return up(x).tanh();
  }
};
struct SideOfParameterImpl : Own {
  Tensor weight = parameter("weight", {6, 6}), side;
  Tensor forward(Tensor x) {
    const auto y = x.matmul(weight).tanh();
    side = x.matmul(weight.t());
    return y;
  }
};
struct AddedSideImpl : SideOfParameterImpl {
  Tensor forward(Tensor x) {
    const auto y = SideOfParameterImpl::forward(x);
    side = nn::add_output(side);
    return y;
  }
};
template <typename Part>
struct WithSideImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<Part> part = child("part", nn::Hooked<Part>());
  Linear last = child("last", Linear(6, 5, true));
  Tensor forward(Tensor x) { return last(part(first(x))); }
};

struct IdentityImpl : Own {
  Tensor forward(Tensor x) { return x; }
};
/// Modules that return what they got: without parameters, and at times.
struct IdentitiesImpl : Own {
  struct AtTimesImpl : Own {
    Linear inner = child("inner", Linear(6, 6, true));
    Tensor forward(Tensor x, bool skip) { return skip ? x : inner(x).tanh(); }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<IdentityImpl> nothing = child("nothing", nn::Hooked<IdentityImpl>());
  nn::Hooked<AtTimesImpl> block = child("block", nn::Hooked<AtTimesImpl>());
  Linear last = child("last", Linear(6, 5, true));
  Tensor forward(Tensor x, bool skip) { return last(block(nothing(block(first(x), skip)), !skip)); }
};

/// Results are changed in place by whoever called the module.
struct InPlaceImpl : WideMlpImpl {
  Tensor forward(Tensor x) {
    auto y = first(x);
    y += 1;
    auto z = block(y);
    z.sigmoid_();
    auto result = last(z);
    result.mul_(2).add_(x.sum(1, /*keepdim=*/true));
    result.select(1, 0).zero_();
    return result;
  }
};

struct OptionalImpl : Own {
  struct PartImpl : Own {
    Linear main = child("main", Linear(6, 6, true)), other = child("other", Linear(6, 6, true));
    Tensor forward(Tensor x, Tensor y, int64_t power, bool negative, double scale) {
      auto result = main(x).tanh();
      if (y.defined()) result = result * other(y);
      return (negative ? -result : result).pow(power) * scale;
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<PartImpl> block0 = child("block0", nn::Hooked<PartImpl>());
  nn::Hooked<PartImpl> block1 = child("block1", nn::Hooked<PartImpl>());
  Tensor forward(Tensor x) {
    const auto y = first(x);
    return block1(block0(y, Tensor(), int64_t{2}, true, 0.5), y, int64_t{1}, false, 2.0);
  }
};

/// Tensors in a container, in an optional and in a struct of the user's.
struct ContainersImpl : Own {
  struct Both {
    Tensor left, right;
  };
  struct SumImpl : Own {
    Linear each = child("each", Linear(6, 6, true));
    Tensor forward(std::vector<Tensor> parts) {
      auto sum = each(parts.at(0));
      for (size_t i = 1; i < parts.size(); ++i) sum = sum + each(parts[i]).sin();
      return sum;
    }
  };
  struct BothImpl : Own {
    Tensor weight = parameter("weight", {6, 6});
    Tensor forward(Both both, std::optional<Tensor> more) {
      const auto y = both.left.matmul(weight) * both.right;
      return more ? y + *more : y;
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<SumImpl> sum = child("sum", nn::Hooked<SumImpl>());
  nn::Hooked<BothImpl> both = child("both", nn::Hooked<BothImpl>());
  Tensor forward(Tensor x) {
    const auto y = first(x);
    const auto z = sum(std::vector<Tensor>{y, y.tanh(), x.sum(1, true).expand({-1, 6})});
    return both(Both{.left = z, .right = y}, std::optional<Tensor>()) +
           both(Both{.left = y, .right = z}, std::optional<Tensor>(z));
  }
};

/// A loss that is a module with parameters of its own.
struct LearntLossImpl : Own {
  struct LossImpl : Own {
    Tensor log_variance = parameter("log_variance", {5});
    Tensor forward(Tensor y, Tensor target, double scale) {
      const auto error = (y - target).to(torch::kFloat32).square();
      return ((error * (-log_variance).exp() + log_variance) * scale).sum();
    }
  };
  Linear first = child("first", Linear(4, 6, true));
  Block block = child("block", Block());
  Linear last = child("last", Linear(6, 5, true));
  nn::Hooked<LossImpl> loss = child("loss", nn::Hooked<LossImpl>());
  Tensor forward(Tensor x, Tensor target, double scale) {
    return loss(last(block(first(x))), target, scale);
  }
};

/// Changes the gradients of a parameter, and of what flows between blocks, by hooks of its own.
struct HooksImpl : WideMlpImpl {
  Tensor scale = parameter("scale", {6});
  HooksImpl() {
    scale.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
  }
  Tensor forward(Tensor x) {
    const auto y = first(x) * scale;
    y.register_hook([](const Tensor& gradient) { return gradient * 0.3; });
    return last(block(y));
  }
};

struct HookOnLinearImpl : WideMlpImpl {
  HookOnLinearImpl() {
    block->up->weight.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
  }
};

std::vector<Case> operations() {
  // Each makes a loss of rows [rows, 5].
  const auto with = [](const std::string& name,
                       std::function<Tensor(const Tensor& y, const Rows& rows)> loss) {
    return net_case<WideMlpImpl>("loss_with_" + name, {}, [loss](auto& net, const Rows& rows) {
      return rows.loss(loss(net(rows.randn({4})).to(torch::kFloat32), rows));
    });
  };
  return {
      with("logsumexp", [](const Tensor& y, const Rows&) { return y.logsumexp(1); }),
      with("cross_entropy",
           [](const Tensor& y, const Rows& rows) {
             return at::cross_entropy_loss(y, rows.ids(5, {}), {}, at::Reduction::None);
           }),
      with("gather_and_scatter",
           [](const Tensor& y, const Rows& rows) {
             const auto ids = rows.ids(5, {3});
             return at::zeros_like(y).scatter_add(1, ids, y.gather(1, ids).exp()).square();
           }),
      with("cumsum_and_flip",
           [](const Tensor& y, const Rows&) { return y.cumsum(1).flip(1).cumprod(1).tanh(); }),
      with("sort_and_topk",
           [](const Tensor& y, const Rows&) {
             return std::get<0>(y.sort(1)) * at::arange(5) + std::get<0>(y.topk(2, 1)).sum(1, true);
           }),
      with("einsum_and_roll",
           [](const Tensor& y, const Rows&) {
             return at::einsum("bi,bj->bij", {y, y.roll(1, 1)});
           }),
      with("fft", [](const Tensor& y, const Rows&) { return at::fft_rfft(y).abs().square(); }),
      with("index_put_and_where",
           [](const Tensor& y, const Rows&) {
             return at::where(y > 0, y.index({torch::indexing::Slice(), 2}).unsqueeze(1), y * y);
           }),
      with("double", [](const Tensor& y, const Rows&) { return y.to(torch::kFloat64).cosh(); }),
      with("one_column", [](const Tensor& y, const Rows&) { return y.select(1, 3).square(); }),
      with("one_row",
           [](const Tensor& y, const Rows& rows) {
             return rows.begin == 0 && rows.size() > 0 ? y[0].square() : y.sum() * 0;
           }),
  };
}

std::vector<Case> argument_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4})).square());
  };
  const auto at_times = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4}), rows.step % 2 == 1).square());
  };
  return {
      net_case<OptionalImpl>("undefined_integer_and_flag_arguments", {}, squares),
      net_case<ContainersImpl>("tensors_in_containers", {.half = false}, squares),
      net_case<IdentitiesImpl>("modules_that_return_their_argument", {.steps = 4}, at_times),
      net_case<InPlaceImpl>("results_changed_in_place", {.half = false}, squares),
      net_case<LearntLossImpl>("a_loss_with_parameters", {},
                               [](auto& net, const Rows& rows) {
                                 return net(rows.randn({4}), rows.randn({5}, 1),
                                            1.0 / static_cast<double>(rows.total));
                               }),
  };
}

std::vector<Case> gradient_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4})).square());
  };
  const auto at_times = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4}), rows.step % 2 == 1).square());
  };
  const auto with_side = [](auto& net, const Rows& rows) {
    const auto y = net(rows.randn({4}));
    return rows.loss(y.square()) + 0.3 * rows.loss(net->part->side.square());
  };
  return {
      net_case<StoppedImpl>("gradient_stopped_in_the_middle", {}, squares),
      net_case<StraightThroughImpl>("straight_through", {.half = false}, squares),
      net_case<CustomFunctionImpl>("an_autograd_function_of_ones_own", {.half = false}, squares),
      net_case<TargetImpl>("a_target_without_grad_mode", {.steps = 4}, at_times),
      net_case<UnfreezingImpl>("without_grad_mode_below_at_times", {.steps = 4}, at_times),
      net_case<IntegersBetweenImpl>("a_module_that_returns_integers", {.half = false}, squares),
      net_case<DroppedOutputImpl>("an_output_that_nobody_uses", {}, squares),
      net_case<HooksImpl>("hooks_on_a_parameter_and_between", {}, squares),
      net_case<HookOnLinearImpl>("a_hook_on_the_weight_of_tesseras_linear", {}, squares),
      net_case<WithSideImpl<SideImpl>>("a_side_loss_of_children", {}, with_side),
      net_case<WithSideImpl<SideOfParameterImpl>>(
          "a_side_loss_of_a_parameter",
          {.left_out = {{"documented: its backward needs the weight; nn::add_output tells of it",
                         in_full_shard}}},
          with_side),
      net_case<WithSideImpl<AddedSideImpl>>("a_side_loss_given_to_add_output", {}, with_side),
      loop_case<WideMlpImpl>("gradient_of_the_input", {},
                             [](Run& run) {
                               auto net = run.net<WideMlpImpl>();
                               const auto x = run.rows.randn({4}).clone().requires_grad_();
                               run.backward(run.rows.loss(net(x).square()));
                               run.note(x.grad().square().sum());
                               run.update();
                             }),
      loop_case<WideMlpImpl>("gradient_kept_in_the_middle", {},
                             [](Run& run) {
                               auto net = run.net<WideMlpImpl>();
                               const auto middle = net->block(net->first(run.rows.randn({4})));
                               middle.retain_grad();
                               run.backward(run.rows.loss(net->last(middle).square()));
                               run.note(middle.grad().to(torch::kFloat32).square().sum());
                               run.update();
                             }),
      loop_case<WideMlpImpl>("adversarial_rows", {.half = false, .recompute = false},
                             [](Run& run) {
                               auto net = run.net<WideMlpImpl>();
                               const auto x = run.rows.randn({4}).clone().requires_grad_();
                               const auto loss = run.rows.loss(net(x).square());
                               const auto slope = torch::autograd::grad({loss}, {x})[0].sign();
                               const auto worse = (x + 0.1 * slope).detach();
                               run.backward(run.rows.loss(net(worse).square()));
                               run.update();
                             }),
      loop_case<TwoHeadsImpl>("two_heads_one_loss", {},
                              [](Run& run) {
                                auto net = run.net<TwoHeadsImpl>();
                                const auto y = net(run.rows.randn({4}));
                                run.backward(run.rows.loss(net->left(y).square()) +
                                             run.rows.loss(net->right(y).exp()));
                                run.update();
                              }),
      loop_case<TwoHeadsImpl>(
          "two_heads_a_backward_each", {},
          [](Run& run) {
            auto net = run.net<TwoHeadsImpl>();
            const auto y = net(run.rows.randn({4}));
            run.set_requires_gradient_sync(false);
            run.rows.loss(net->left(y).square()).backward({}, /*retain_graph=*/true);
            run.finish_backward();
            run.set_requires_gradient_sync(true);
            run.backward(run.rows.loss(net->right(y).exp()));
            run.update();
          }),
      loop_case<TwoHeadsImpl>("one_head_in_each_step", {.steps = 4},
                              [](Run& run) {
                                auto net = run.net<TwoHeadsImpl>();
                                const auto y = net(run.rows.randn({4}));
                                const auto z =
                                    run.rows.step % 2 == 0 ? net->left(y) : net->right(y);
                                run.backward(run.rows.loss(z.square()));
                                run.update();
                              }),
      loop_case<WideMlpImpl>("one_backward_of_several_losses", {},
                             [](Run& run) {
                               auto net = run.net<WideMlpImpl>();
                               const auto y = net(run.rows.randn({4}));
                               torch::autograd::backward(
                                   {run.rows.loss(y.square()), run.rows.loss(y.sin())},
                                   {torch::ones({}), torch::full({}, 0.5)});
                               run.finish_backward();
                               run.update();
                             }),
      loop_case<WideMlpImpl>("a_penalty_on_weights_while_unsharded", {},
                             [](Run& run) {
                               auto net = run.net<WideMlpImpl>();
                               run.unshard();
                               const auto penalty = net->block->up->weight.square().sum() +
                                                    net->last->weight.abs().sum();
                               run.backward(run.rows.loss(net(run.rows.randn({4})).square()) +
                                            0.1 * run.rows.share() * penalty);
                               run.update();
                             }),
      loop_case<WideMlpImpl>(
          "a_penalty_on_weights",
          {.left_out = {{"documented: refused under full_shard", in_full_shard}}},
          [](Run& run) {
            auto net = run.net<WideMlpImpl>();
            const auto y = net(run.rows.randn({4}));
            const auto penalty =
                net->block->up->weight.square().sum() + net->last->weight.abs().sum();
            run.backward(run.rows.loss(y.square()) + 0.1 * run.rows.share() * penalty);
            run.update();
          }),
      loop_case<WideMlpImpl>("each_step_in_a_thread_of_its_own", {},
                             [](Run& run) {
                               std::exception_ptr error;
                               std::thread([&] {
                                 try {
                                   auto net = run.net<WideMlpImpl>();
                                   run.backward(run.rows.loss(net(run.rows.randn({4})).square()));
                                   run.update();
                                 } catch (...) {
                                   error = std::current_exception();
                                 }
                               }).join();
                               if (error) std::rethrow_exception(error);
                             }),
  };
}

}  // namespace

std::vector<Case> flow_cases() {
  std::vector<Case> cases;
  for (const auto& theme : {operations(), argument_cases(), gradient_cases()}) {
    cases.insert(cases.end(), theme.begin(), theme.end());
  }
  return cases;
}

}  // namespace tessera::own_modules
