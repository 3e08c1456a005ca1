#include "tessera/parallel/tensor/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "tessera/autograd/deferred_gradients.h"
#include "tessera/config/run_config.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;
using enum nn::TensorStyle;

/// A user's own module: 6 x 5 features, an odd number for two ranks.
struct NetImpl : nn::Hookable {
  NetImpl() : up(6, 5, /*with_bias=*/true), down(5, 6, /*with_bias=*/true), norm(6, 1e-5) {
    register_module("up", up);
    register_module("down", down);
    register_module("norm", norm);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(
          torch::arange(parameter.numel()).mul(7).remainder(11).sub(5).div(9).view_as(parameter));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }

  nn::Linear up, down;
  nn::LayerNorm norm;
};
using Net = nn::Hooked<NetImpl>;

nn::TensorPlan plan_of_net() {
  return {{.pattern = "up", .style = column_wise, .enters = true},
          {.pattern = "down", .style = row_wise},
          {.pattern = "norm", .style = per_position}};
}

std::string message_of(const nn::TensorPlan& plan, const mesh::DeviceMesh& mesh) {
  Net net;
  try {
    tensor_parallel(*net, plan, mesh);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// The whole gradient of a parameter from the parts of it that ranks have.
torch::Tensor gathered_gradient(const torch::Tensor& parameter, const TensorPart& part,
                                const mesh::Axis& axis) {
  auto whole = torch::zeros(part.shape);
  auto flat = whole.view(-1);
  const auto own = parameter.grad().reshape(-1);
  part.stripe.for_each_stretch(0, own.numel(), [&](int64_t position, int64_t k, int64_t n) {
    flat.narrow(0, position, n).copy_(own.narrow(0, k, n));
  });
  const bool summed = part.stripe.whole() && !part.replication.partial_gradients;
  if (summed && part.replication.ranks.rank() > 0) whole.zero_();  // all have the same
  axis.all_reduce(whole).wait();
  return whole;
}

/// Where the gradients of weights go: to autograd, to gradients that are there, or to those in the
/// second part of a split backward.
enum class Gradients { returned, kept, deferred };

void backward_of(const std::function<torch::Tensor()>& forward, Net& net, Gradients to) {
  if (to != Gradients::returned) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = zeros_like(parameter);
  }
  const auto deferred = std::make_shared<autograd::DeferredGradients>();
  std::optional<autograd::DeferScope> scope;
  if (to == Gradients::deferred) scope.emplace(deferred);
  forward().square().sum().backward();
  if (to != Gradients::deferred) return;
  for (const auto& weight : {net->up->weight, net->down->weight}) {
    EXPECT_EQ(weight.grad().abs().sum().item<double>(), 0);
  }
  deferred->run();
}

class TensorParallelTest : public RankTest {};

TEST_P(TensorParallelTest, AnOwnModuleEqualsItselfOnOneRank) {
  on_mesh({.shape = {.tp = GetParam()}}, [](const mesh::DeviceMesh& mesh) {
    const auto x = torch::arange(2 * 12 * 6).mul(5).remainder(13).div(13.0).view({2, 12, 6});
    Net whole;
    auto y = whole(x);
    y.square().sum().backward();
    for (const bool sequence : {false, true}) {
      for (const auto to : {Gradients::returned, Gradients::kept, Gradients::deferred}) {
        Net divided;
        const auto& axis = mesh.axis("tp");
        const auto parts =
            tensor_parallel(*divided, plan_of_net(), mesh, {.sequence_parallel = sequence});
        const int64_t length = sequence ? 12 / axis.size() : 12;
        const int64_t begin = sequence ? axis.rank() * length : 0;
        const auto forward = [&] {
          const auto own = divided(x.narrow(1, begin, length).contiguous());
          expect_close(own, y.narrow(1, begin, length));
          return own;
        };
        backward_of(forward, divided, to);
        const auto named = divided->named_parameters();
        for (const auto& item : whole->named_parameters()) {
          if (axis.size() == 1) break;
          SCOPED_TRACE(item.key());
          expect_close(gathered_gradient(named[item.key()], parts.at(item.key()), axis),
                       item.value().grad(), {.absolute = 1e-5, .relative = 1e-5});
        }
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallelTest, ::testing::Values(1, 2, 3));

/// Shoeybi et al., figure 4: two all-reduces forward and two backward in a layer; Korthikanti et
/// al., figure 5: all-gathers and reduce-scatters of the same bytes in their place, and a gather of
/// what was not kept.
TEST(TensorParallel, SendsWhatThePapersSay) {
  on_mesh({.shape = {.tp = 2}}, [](const mesh::DeviceMesh& mesh) {
    config::ModelSection section;
    section.preset = "micro";
    const auto shape = config::resolve_model_shape(section);
    const auto ids = torch::arange(2 * 16).view({2, 16});
    const int64_t bytes = ids.numel() * shape.dim * 4, layers = shape.num_layers;
    for (const bool sequence : {false, true}) {
      auto model = models::make_language_model(shape);
      models::initialise(*model, 1, 0.02);
      tensor_parallel(*model, model->tensor_plan(), mesh, {.sequence_parallel = sequence});
      const auto before = mesh.axis("tp").counters();
      const auto loss = model->loss(ids, ids, 1);
      const auto forward = mesh.axis("tp").counters();
      loss.backward();
      const auto backward = mesh.axis("tp").counters();
      // Each chunk of logits (here one) takes two collectives: of its maxima, and of sums of two
      // numbers a token.
      const int64_t head = 2, head_bytes = ids.numel() * 3 * 4;
      if (!sequence) {
        // Beside the layers: the embedding forward, the head backward.
        EXPECT_EQ(forward.all_reduce.calls - before.all_reduce.calls, 2 * layers + 1 + head);
        EXPECT_EQ(forward.all_reduce.bytes - before.all_reduce.bytes,
                  (2 * layers + 1) * bytes + head_bytes);
        EXPECT_EQ(backward.all_reduce.calls - forward.all_reduce.calls, 2 * layers + 1);
        EXPECT_EQ(backward.all_reduce.bytes - forward.all_reduce.bytes, (2 * layers + 1) * bytes);
        EXPECT_EQ(backward.all_gather.calls + backward.reduce_scatter.calls, 0);
      } else {
        EXPECT_EQ(forward.all_reduce.calls - before.all_reduce.calls, head);
        EXPECT_EQ(forward.all_gather.calls, 2 * layers + 1);
        EXPECT_EQ(forward.reduce_scatter.calls, 2 * layers + 1);
        EXPECT_EQ(forward.all_gather.bytes, (2 * layers + 1) * bytes);
        EXPECT_EQ(forward.reduce_scatter.bytes, (2 * layers + 1) * bytes);
        EXPECT_EQ(backward.all_reduce.calls, forward.all_reduce.calls);
        // Section 4.2.2: what entered a layer's two parts is gathered once more.
        EXPECT_EQ(backward.all_gather.calls, 2 * forward.all_gather.calls + 2 * layers);
        EXPECT_EQ(backward.all_gather.bytes, 2 * forward.all_gather.bytes + 2 * layers * bytes);
        EXPECT_EQ(backward.reduce_scatter.bytes, 2 * forward.reduce_scatter.bytes);
      }
    }
  });
}

TEST(TensorParallel, LogitsAreWhole) {
  on_mesh({.shape = {.tp = 2}}, [](const mesh::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    config::ModelSection section;
    section.preset = "micro";
    section.vocab_size = 101;  // one row more on the second rank
    const auto shape = config::resolve_model_shape(section);
    const auto ids = torch::arange(2 * 16).view({2, 16});
    auto whole = models::make_language_model(shape);
    auto divided = models::make_language_model(shape);
    for (auto* model : {whole.get(), divided.get()}) models::initialise(*model, 1, 0.02);
    tensor_parallel(*divided, divided->tensor_plan(), mesh);
    expect_close(divided->logits(ids), whole->logits(ids), {.absolute = 1e-5, .relative = 1e-5});
    auto targets = ids.clone();
    targets[0].slice(0, 3, 6).fill_(-100);
    expect_close(divided->loss(ids, targets, 0.5), whole->loss(ids, targets, 0.5));
  });
}

TEST(TensorParallel, DropsTheSameOnEveryDivision) {
  on_mesh({.shape = {.tp = 2}}, [](const mesh::DeviceMesh& mesh) {
    const auto x = torch::ones({3, 8, 4});
    const nn::RandomScope scope(nn::RandomContext{.seed = 3, .step = 2, .first_row = 5});
    nn::Dropout whole("d", 0.5), part("d", 0.5);
    part->divide_sequence(mesh.rank(), 2);
    EXPECT_TRUE(
        torch::equal(part(x.slice(1, 0, 4).contiguous()), whole(x).narrow(1, 4 * mesh.rank(), 4)));
  });
}

TEST(TensorParallel, SaysWhatIsWrongWithAPlan) {
  on_mesh({.shape = {.tp = 2}}, [](const mesh::DeviceMesh& mesh) {
    auto plan = plan_of_net();
    plan[0].pattern = "upp";
    EXPECT_THAT(message_of(plan, mesh), HasSubstr("'upp' matches no module"));
    plan = plan_of_net();
    plan.push_back({.pattern = "n*", .style = per_position});
    EXPECT_THAT(message_of(plan, mesh),
                HasSubstr("norm: expected one rule for it, got 'norm' and 'n*'"));
    plan = plan_of_net();
    plan.pop_back();
    EXPECT_THAT(message_of(plan, mesh), HasSubstr("no rule for norm.weight, norm.bias"));
    plan = plan_of_net();
    plan[2].style = row_wise;
    EXPECT_THAT(message_of(plan, mesh), HasSubstr("norm: expected a Linear or Conv1D, got "));
    plan = plan_of_net();
    plan[0].heads = 5;
    EXPECT_THAT(message_of(plan, mesh), HasSubstr("up: 5 heads cannot be divided over 2 ranks"));
    auto model = models::make_language_model(models::model_preset("micro"));
    models::initialise(*model, 1, 0.02);
    tensor_parallel(*model, model->tensor_plan(), mesh);
    EXPECT_THROW(model->logits(torch::ones({1, 15}, torch::kInt64)), c10::ValueError);
  });
}

}  // namespace
}  // namespace tessera::parallel
