// Which dtype is where, read in a running step: the table in which Accelerate's guide compares FSDP
// and DeepSpeed for a model that was loaded in bf16.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "tessera/nn/layers.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tests/support/ranks.h"

namespace tessera::parallel {
namespace {

constexpr auto kBf16 = torch::kBFloat16, kFp32 = torch::kFloat32;

struct Dtypes {
  torch::Dtype weight, input, product;  ///< inside the forward
  torch::Dtype gradient;                ///< whole, as backward accumulates and ranks reduce it
  torch::Dtype slice, slice_gradient, state;  ///< local: what the optimizer works on
  bool small_update_counts;                   ///< 1e-4 on a weight of 1

  bool operator==(const Dtypes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Dtypes& d) {
  return out << "weight " << d.weight << ", input " << d.input << ", product " << d.product
             << ", gradient " << d.gradient << ", slice " << d.slice << ", its gradient "
             << d.slice_gradient << ", optimizer state " << d.state
             << (d.small_update_counts ? ", a small update counts" : ", a small update is lost");
}

constexpr Dtypes all_bf16{kBf16, kBf16, kBf16, kBf16, kBf16, kBf16, kBf16, false};
/// fp32 at rest, bf16 in use; `gradient`: in which gradients are reduced.
constexpr Dtypes mixed(torch::Dtype gradient) {
  return {kBf16, kBf16, kBf16, gradient, kFp32, kFp32, kFp32, true};
}

/// One step of a layer whose weights were loaded in bf16, all 1.
Dtypes step(const mesh::DeviceMesh& mesh, const UnitOptions& options) {
  nn::Linear layer(8, 8, false, kBf16);
  layer->weight.detach().fill_(1);
  auto model = fully_shard(*layer, mesh, {.unit = options}, {.kind = UnitRuleKind::whole_model});
  Dtypes found{};
  // Attached last: they see what the engine has made of parameters, arguments and results.
  layer->add_hooks(
      {.before_forward = [&] { found.weight = layer->weight.scalar_type(); },
       .before_backward = [&] { found.gradient = layer->weight.grad().scalar_type(); },
       .replace_input = [&](torch::Tensor& input) { found.input = input.scalar_type(); },
       .replace_output = [&](torch::Tensor& output) { found.product = output.scalar_type(); }});
  torch::optim::AdamW optimizer(model.parameters(),
                                torch::optim::AdamWOptions(1e-4).weight_decay(0));
  const auto dtype = options.mixed_precision.param_dtype ? kFp32 : kBf16;
  layer(torch::ones({3, 8}, torch::dtype(dtype).requires_grad(true))).sum().backward();
  model.finish_backward();
  optimizer.step();
  const auto& slice = model.slices().front();
  found.slice = slice.parameter.scalar_type();
  found.slice_gradient = slice.gradient.scalar_type();
  found.small_update_counts = slice.parameter.lt(1).all().item<bool>();
  for (const auto& [key, state] : optimizer.state()) {
    found.state = static_cast<const torch::optim::AdamWParamState&>(*state).exp_avg().scalar_type();
  }
  model.finish_step();
  return found;
}

TEST(LoadedInBf16, ComputeNoneIsBf16Throughout) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    EXPECT_EQ(step(mesh, {.placement = Placement::full_shard}), all_bf16);
  });
}

TEST(LoadedInBf16, ComputeBf16IsFp32AtRestAndBf16InUse) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    EXPECT_EQ(step(mesh, {.mixed_precision = {.param_dtype = kBf16}}), mixed(kBf16));
    EXPECT_EQ(step(mesh, {.mixed_precision = {.param_dtype = kBf16, .reduce_dtype = kFp32}}),
              mixed(kFp32));
  });
}

// ZeRO-1, 2 and 3: DeepSpeed keeps fp32 slices whatever was loaded.
TEST(LoadedInBf16, DeepSpeedsPlacementsAreThat) {
  on_mesh({.shape = {.dp_shard = 2}}, [](const mesh::DeviceMesh& mesh) {
    for (const auto placement :
         {Placement::shard_optimizer, Placement::shard_gradients, Placement::full_shard}) {
      EXPECT_EQ(step(mesh, {.placement = placement,
                            .mixed_precision = {.param_dtype = kBf16, .reduce_dtype = kFp32}}),
                mixed(kFp32))
          << "placement " << static_cast<int>(placement);
    }
  });
}

struct ScaleImpl : nn::Hookable {
  ScaleImpl() : weight(register_parameter("weight", torch::ones({8}))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& table) {
    seen = {x.scalar_type(), table.scalar_type()};
    return x * weight + table;
  }
  torch::Tensor weight;
  std::vector<torch::Dtype> seen;
};

TEST(CastsOfArguments, AreOfThoseWithAGradientOrOfAll) {
  const mesh::DeviceMesh mesh;
  const auto seen = [&](const MixedPrecisionPolicy& policy) {
    nn::Hooked<ScaleImpl> scale;
    auto model = fully_shard(*scale, mesh, {.unit = {.mixed_precision = policy}},
                             {.kind = UnitRuleKind::whole_model});
    scale(torch::ones({8}).requires_grad_(), torch::ones({8}));
    return scale->seen;
  };
  using Dtypes = std::vector<torch::Dtype>;
  EXPECT_EQ(seen({.param_dtype = kBf16}), (Dtypes{kBf16, kFp32}));
  EXPECT_EQ(seen({.param_dtype = kBf16, .cast_constant_inputs = true}), (Dtypes{kBf16, kBf16}));
  EXPECT_EQ(seen({.param_dtype = kBf16, .cast_forward_inputs = false}), (Dtypes{kFp32, kFp32}));
}

}  // namespace
}  // namespace tessera::parallel
