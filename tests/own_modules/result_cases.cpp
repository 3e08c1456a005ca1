// What modules take and give: tensors in structures, arguments that only move or are changed in
// place, losses that are left in members.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/nn/layers.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using torch::Tensor;

/// Puts a block of `Part` between two layers.
template <typename Part>
struct BetweenImpl : Own {
  Linear first = child("first", Linear(4, 6, true));
  nn::Hooked<Part> block = child("block", nn::Hooked<Part>());
  Linear last = child("last", Linear(6, 3, true));
};

struct TupleImpl : Own {
  Linear up = child("up", Linear(6, 6, true)), gate = child("gate", Linear(6, 6, true));
  std::tuple<Tensor, std::pair<Tensor, double>> forward(Tensor x) {
    const auto opened = gate(x).sigmoid();
    return {up(x) * opened, {opened, 0.5}};
  }
};
struct OfTupleImpl : BetweenImpl<TupleImpl> {
  Tensor forward(Tensor x) {
    const auto [y, rest] = block(first(x));
    return last(y + rest.second * rest.first);
  }
};
struct OfHalfATupleImpl : BetweenImpl<TupleImpl> {  ///< the second result is used at times only
  Tensor forward(Tensor x, bool both) {
    const auto [y, rest] = block(first(x));
    return last(both ? y + rest.first : y);
  }
};
struct OfTheSecondAloneImpl : BetweenImpl<TupleImpl> {
  Tensor forward(Tensor x) { return last(std::get<1>(block(first(x))).first); }
};

struct StateImpl : Own {  ///< a cell that takes and gives a struct
  struct State {
    Tensor hidden;
    std::optional<Tensor> cell;
    void visit_tensors(const auto& visit) { visit(hidden), visit(cell); }
  };
  Linear of_input = child("of_input", Linear(6, 12, true)),
         of_hidden = child("of_hidden", Linear(6, 12));
  State forward(const Tensor& x, const State& state) {
    const auto parts = (of_input(x) + of_hidden(state.hidden)).chunk(2, -1);
    const auto cell = state.cell ? *state.cell * 0.5 + parts[0].tanh() : parts[0].tanh();
    return {parts[1].sigmoid() * cell, cell};
  }
};
struct OverTimeImpl : BetweenImpl<StateImpl> {
  Tensor forward(Tensor x) {
    StateImpl::State state{torch::zeros({x.size(0), 6}), {}};
    for (int time = 0; time < 3; ++time) state = block(first(x * (time + 1)), state);
    return last(state.hidden + *state.cell);
  }
};

struct ListsImpl : Own {
  Linear up = child("up", Linear(6, 6, true));
  std::vector<Tensor> forward(const std::vector<Tensor>& all, const std::optional<Tensor>& shift,
                              const std::map<std::string, Tensor>& named) {
    std::vector<Tensor> results;
    for (const auto& each : all) results.push_back(up(each) + named.at("bias"));
    if (shift) results.push_back(up(*shift).tanh());
    return results;
  }
};
struct OfListsImpl : BetweenImpl<ListsImpl> {
  Tensor forward(Tensor x) {
    const auto y = first(x);
    const std::map<std::string, Tensor> named{{"bias", y.mean(-1, true)}};
    const auto some = block(std::vector{y, y.sin()}, std::optional<Tensor>(), named);
    const auto all = block(some, std::optional(y), named);
    return last(all[0] * all[1] + all[2]);
  }
};

struct MovesImpl : Own {
  Linear up = child("up", Linear(6, 6, true));
  Tensor forward(std::unique_ptr<Tensor> x) { return up(*x).tanh(); }
};
struct OfMovesImpl : BetweenImpl<MovesImpl> {
  Tensor forward(Tensor x) { return last(block(std::make_unique<Tensor>(first(x)))); }
};

struct InPlaceImpl : Own {
  Linear up = child("up", Linear(6, 6, true));
  Tensor forward(Tensor x) { return up(x.relu_()); }
};
struct OfInPlaceImpl : BetweenImpl<InPlaceImpl> {
  Tensor forward(Tensor x) {
    const auto y = first(x);
    const auto z = block(y);
    return last(z * y);  // y was changed
  }
};

/// Two losses of a block's and one of a layer inside of it, as routers and their experts leave
/// them.
struct RouterImpl : Own {
  Linear gate = child("gate", Linear(6, 3));
  Tensor entropy;
  Tensor forward(Tensor x) {
    const auto scores = gate(x).softmax(-1);
    entropy = nn::add_output((scores * scores.log()).sum());
    return scores;
  }
};
struct ExpertsImpl : Own {
  nn::Hooked<RouterImpl> router = child("router", nn::Hooked<RouterImpl>());
  Linear up = child("up", Linear(6, 18, true));
  Tensor balance, size;
  Tensor forward(Tensor x) {
    const auto scores = router(x);
    balance = nn::add_output(scores.square().sum());
    const auto y = up(x).view({x.size(0), 3, 6});
    size = nn::add_output(y.square().sum() * 0.01);
    return (y * scores.unsqueeze(-1)).sum(1);
  }
};
struct OfExpertsImpl : BetweenImpl<ExpertsImpl> {
  Tensor forward(Tensor x) { return last(block(first(x)).tanh()); }
};

Tensor with_losses(nn::Hooked<OfExpertsImpl>& net, const Rows& rows) {
  const auto y = net(rows.randn({4}));
  const auto own = net->block->balance + net->block->size + 0.1 * net->block->router->entropy;
  return rows.loss(y.square()) + own / static_cast<double>(rows.total);
}
Tensor losses_alone(nn::Hooked<OfExpertsImpl>& net, const Rows& rows) {
  net(rows.randn({4}));
  return (net->block->balance + net->block->size) / static_cast<double>(rows.total);
}

}  // namespace

std::vector<Case> result_cases() {
  const auto squares = [](auto& net, const Rows& rows) {
    return rows.loss(net(rows.randn({4})).square());
  };
  return {
      net_case<OfTupleImpl>("a_tuple_with_a_pair", {}, squares),
      net_case<OfHalfATupleImpl>("half_of_a_tuple", {},
                                 [](auto& net, const Rows& rows) {
                                   return rows.loss(
                                       net(rows.randn({4}), rows.step % 2 == 0).square());
                                 }),
      net_case<OfTheSecondAloneImpl>("the_second_of_a_tuple_alone", {}, squares),
      net_case<OverTimeImpl>("a_struct_of_states_over_time", {}, squares),
      net_case<OfListsImpl>("lists_options_and_maps", {}, squares),
      net_case<OfMovesImpl>("an_argument_that_only_moves", {.recompute = false}, squares),
      net_case<OfInPlaceImpl>("an_argument_changed_in_place", {.recompute = false}, squares),
      net_case<OfExpertsImpl>("losses_in_members", {.half = false}, with_losses),
      net_case<OfExpertsImpl>("losses_in_members_alone", {.half = false}, losses_alone),
  };
}

}  // namespace tessera::own_modules
