#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/optim/learning_rate.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/norm.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {
namespace {

constexpr int64_t kSize = 5003;  // no multiple of a vector or a block

// The same 20 updates by torch::optim, with clipping by a factor before each.
template <typename TorchOptimizer, typename TorchOptions>
torch::Tensor torch_result(const torch::Tensor& start, const std::vector<torch::Tensor>& gradients,
                           const TorchOptions& options, double scale) {
  auto parameter = start.clone().set_requires_grad(true);
  TorchOptimizer optimizer(std::vector<torch::Tensor>{parameter}, options);
  for (const auto& gradient : gradients) {
    parameter.mutable_grad() = gradient * scale;
    optimizer.step();
  }
  return parameter.detach();
}

torch::Tensor our_result(const torch::Tensor& start, const std::vector<torch::Tensor>& gradients,
                         OptimizerOptions options, double learning_rate, double weight_decay,
                         double scale) {
  auto parameter = start.clone();
  const auto gradient = torch::empty_like(start);
  Optimizer optimizer({{parameter, gradient, weight_decay}}, options);
  for (const auto& value : gradients) {
    gradient.copy_(value);
    optimizer.step(learning_rate, scale);
  }
  return parameter;
}

class OptimizerTest : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    torch::manual_seed(7);
    start_ = torch::randn({kSize});
    for (int i = 0; i < 20; ++i) gradients_.push_back(torch::randn({kSize}));
  }
  torch::Tensor start_;
  std::vector<torch::Tensor> gradients_;
};

TEST_P(OptimizerTest, AdamWEqualsTorch) {
  const auto expected = torch_result<torch::optim::AdamW>(
      start_, gradients_, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(0.1),
      GetParam());
  const auto actual = our_result(start_, gradients_, {}, 1e-2, 0.1, GetParam());
  EXPECT_LT((expected - actual).abs().max().item<double>(), 2e-6);
  EXPECT_GT((start_ - actual).abs().max().item<double>(), 1e-2);
}

TEST_P(OptimizerTest, SgdWithMomentumEqualsTorch) {
  const auto expected = torch_result<torch::optim::SGD>(
      start_, gradients_, torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.1),
      GetParam());
  const auto actual = our_result(start_, gradients_, {.type = OptimizerType::sgd, .momentum = 0.9},
                                 1e-2, 0.1, GetParam());
  EXPECT_LT((expected - actual).abs().max().item<double>(), 2e-6);
}

INSTANTIATE_TEST_SUITE_P(GradientScales, OptimizerTest, ::testing::Values(1.0, 0.25));

/// The numbers of tests/fixtures/optimizers/make.py.
torch::Tensor made_values(const std::vector<int64_t>& shape, int seed) {
  const auto count = shape[0] * shape[1];
  const auto angle = torch::arange(count, torch::kFloat64) * (0.7 + 0.1 * seed) + seed;
  return angle.sin().to(torch::kFloat32);
}

nlohmann::json recorded_cases(const std::string& name) {
  return nlohmann::json::parse(read_file("tests/fixtures/optimizers/" + name + ".json"));
}

torch::Tensor recorded_parameter(const nlohmann::json& from) {
  return torch::tensor(from.at("parameter").get<std::vector<double>>()).to(torch::kFloat32);
}

// Four steps on one matrix: what torch.optim.Muon left.
TEST(Muon, EqualsTorch) {
  for (const auto& from : recorded_cases("muon")) {
    const auto shape = from.at("shape").get<std::vector<int64_t>>();
    OptimizerOptions options{
        .type = OptimizerType::muon,
        .muon_momentum = from.at("momentum"),
        .muon_nesterov = from.at("nesterov"),
        .muon_steps = from.at("steps"),
        .muon_scale = *value_named<MuonScale>(from.at("scale").get<std::string>())};
    options.orthogonalise = [&](const MatrixSlices& slices) {
      slices.apply(0, orthogonalised(slices.direction(0).view(shape), options).reshape({-1}));
    };
    const auto parameter = made_values(shape, 0), gradient = torch::empty_like(parameter);
    Optimizer optimizer({{.parameter = parameter,
                          .gradient = gradient,
                          .weight_decay = 0.1,
                          .treatment = Treatment::matrices}},
                        options);
    for (int step = 0; step < 4; ++step) {
      gradient.copy_(made_values(shape, step + 1));
      optimizer.step(0.05);
    }
    // Products in bfloat16 differ between processors in their last bit: 2^-8 of an update.
    EXPECT_LT((parameter - recorded_parameter(from)).abs().max().item<double>(), 4e-3)
        << from.at("shape") << from.at("scale");
    EXPECT_GT((parameter - made_values(shape, 0)).abs().max().item<double>(), 0.02);
    EXPECT_EQ(optimizer.state_bytes(), static_cast<int64_t>(parameter.nbytes()));
  }
}

TEST(Muon, SingularValuesEndNearOne) {
  torch::manual_seed(3);
  for (const auto& [rows, columns] : {std::pair{40, 64}, {64, 40}, {50, 50}}) {
    const auto values = std::get<1>(
        torch::svd(newton_schulz(torch::randn({rows, columns}), 5).to(torch::kFloat32)));
    EXPECT_LT(values.max().item<double>(), 1.3);
    EXPECT_GT(values.min().item<double>(), rows == columns ? 0.0 : 0.5);
  }
}

// Whatever a processor multiplies bfloat16 in.
TEST(Muon, RoundsWhereLibTorchsBfloat16Does) {
  torch::manual_seed(4);
  for (const auto& [rows, columns] : {std::pair{40, 64}, {64, 40}}) {
    const auto matrix = torch::randn({rows, columns});
    const bool tall = rows > columns;
    auto x = (tall ? matrix.t() : matrix).to(torch::kBFloat16);
    x = x / x.norm();
    for (int step = 0; step < 5; ++step) {
      const auto gram = x.mm(x.t());
      x = torch::addmm(x, torch::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445);
    }
    const auto ours = newton_schulz(matrix, 5);
    EXPECT_EQ(ours.scalar_type(), torch::kBFloat16);
    EXPECT_LT((ours - (tall ? x.t() : x)).abs().max().item<double>(), 0.02);
  }
}

TEST(Lion, EqualsThePublishedUpdate) {
  const auto from = recorded_cases("lion");
  const auto shape = from.at("shape").get<std::vector<int64_t>>();
  const auto parameter = made_values(shape, 0), gradient = torch::empty_like(parameter);
  Optimizer optimizer({{.parameter = parameter, .gradient = gradient, .weight_decay = 0.1}},
                      {.type = OptimizerType::lion, .beta1 = 0.9, .beta2 = 0.99});
  for (int step = 0; step < 4; ++step) {
    gradient.copy_(made_values(shape, step + 1));
    optimizer.step(0.01);
  }
  EXPECT_LT((parameter - recorded_parameter(from)).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(optimizer.states(0)[0].first.name, "exp_avg");
}

// A least-squares problem, trained in 16 bits throughout: the last mean error.
double trained_error(bool stochastic_rounding, torch::Dtype state_dtype,
                     torch::Dtype dtype = torch::kBFloat16, double learning_rate = 1e-3) {
  torch::manual_seed(3);
  const auto x = torch::randn({256, 16}), truth = 1 + torch::randn({16}) / 4;
  const auto y = x.mv(truth);
  const auto parameter = torch::ones({16}, dtype);
  const auto gradient = torch::empty({16});
  Optimizer optimizer(
      {{parameter, gradient}},
      {.state_dtype = state_dtype, .stochastic_rounding = stochastic_rounding, .seed = 5});
  double error = 0;
  for (int step = 0; step < 4000; ++step) {
    const auto residual = x.mv(parameter.to(torch::kFloat32)) - y;
    if (step >= 3900) error += residual.square().mean().item<double>() / 100;
    gradient.copy_(x.t().mv(residual) / 128);
    optimizer.step(learning_rate);
  }
  return error;
}

TEST(Bfloat16, StochasticRoundingConvergesWhereNearestStalls) {
  // At 1 a bfloat16 steps by 2^-7: an update of 1e-3 is lost if rounded to nearest.
  const double stalled = trained_error(false, torch::kFloat32);
  EXPECT_GT(stalled, 0.5);
  for (const auto state_dtype : {torch::kFloat32, torch::kBFloat16}) {
    EXPECT_LT(trained_error(true, state_dtype), stalled / 1000);
  }
}

TEST(Float16, StochasticRoundingConvergesWhereNearestStalls) {
  // At 1 a float16 steps by 2^-10, below by half of that.
  const double stalled = trained_error(false, torch::kFloat32, torch::kHalf, 2e-4);
  EXPECT_GT(stalled, 0.5);
  EXPECT_LT(trained_error(true, torch::kFloat32, torch::kHalf, 2e-4), stalled / 1000);
}

// Gradients of one size each, from small to the largest of their block: what a moment falls short of them
// after as many steps as should bring it there, by the mean of all.
double shortfall(bool stochastic_rounding, const std::string& state, double beta) {
  const auto sizes = torch::linspace(-6, 0, kStateBlock).exp().repeat({64});
  const auto parameter = torch::zeros_like(sizes);
  Optimizer optimizer(
      {{.parameter = parameter, .gradient = sizes.clone(), .treatment = Treatment::blocks}},
      {.beta1 = beta, .beta2 = beta, .stochastic_rounding = stochastic_rounding, .seed = 5});
  for (int step = 0; step < 12 / (1 - beta); ++step) optimizer.step(0);
  torch::Tensor numbers, factors;
  for (const auto& [kind, values] : optimizer.states(0)) {
    if (kind.name.starts_with(state + "_fp")) numbers = values.to(torch::kFloat32);
    if (kind.name == state + "_factor") factors = values;
  }
  const auto moment = (numbers.view({-1, kStateBlock}) * factors.unsqueeze(1)).flatten();
  const auto wanted = state == "exp_avg" ? sizes : sizes.square();
  return 1 - (moment / wanted).mean().item<double>();
}

TEST(Blocks, MomentsRoundedAtRandomArriveWhereNearestStalls) {
  EXPECT_GT(shortfall(false, "exp_avg", 0.95), 0.2);
  EXPECT_NEAR(shortfall(true, "exp_avg", 0.95), 0, 0.01);
  EXPECT_GT(shortfall(false, "exp_avg_sq", 0.999), 0.1);
  EXPECT_NEAR(shortfall(true, "exp_avg_sq", 0.999), 0, 0.01);
}

TEST(Float16, GradientsAreThoseNumbersInFloat32) {
  torch::manual_seed(7);
  const auto start = torch::randn({kSize}).to(torch::kHalf);
  const auto gradient = torch::randn({kSize}).to(torch::kHalf);
  for (const auto type : {OptimizerType::adamw, OptimizerType::sgd, OptimizerType::lion}) {
    const auto updated = [&](const torch::Tensor& by) {
      auto parameter = start.clone();
      const auto buffer = torch::empty_like(by);
      Optimizer optimizer({{.parameter = parameter, .gradient = buffer}}, {.type = type});
      for (int i = 0; i < 3; ++i) {
        buffer.copy_(by);  // an update may use it up
        optimizer.step(1e-2, /*gradient_scale=*/0.5);
      }
      return parameter;
    };
    EXPECT_TRUE(torch::equal(updated(gradient), updated(gradient.to(torch::kFloat32))));
    EXPECT_FALSE(torch::equal(updated(gradient), start));
  }
}

TEST(Bfloat16, StatesAloneCostLittleAccuracy) {
  torch::manual_seed(7);
  const auto start = torch::randn({kSize});
  std::vector<torch::Tensor> gradients;
  for (int i = 0; i < 20; ++i) gradients.push_back(torch::randn({kSize}));
  const auto full = our_result(start, gradients, {}, 1e-2, 0.1, 1);
  const auto narrow = our_result(start, gradients, {.state_dtype = torch::kBFloat16}, 1e-2, 0.1, 1);
  const double moved = (full - start).norm().item<double>();
  const double apart = (full - narrow).norm().item<double>();
  EXPECT_LT(apart, 0.02 * moved);
  EXPECT_GT(apart, 1e-5 * moved);
}

TEST(Blocks, TheSameBitsHoweverASliceIsDivided) {
  torch::manual_seed(7);
  constexpr int64_t kBlocks = 300, kFirst = 257;  // more than are computed at once
  const auto gradient = torch::randn({kBlocks * kStateBlock});
  const auto whole = torch::randn({kBlocks * kStateBlock}), parts = whole.clone();
  const auto slice = [&](const torch::Tensor& parameter, int64_t begin, int64_t end) {
    const auto of = [&](const torch::Tensor& x) {
      return x.slice(0, begin * kStateBlock, end * kStateBlock);
    };
    return Slice{.parameter = of(parameter),
                 .gradient = of(gradient).clone(),
                 .treatment = Treatment::blocks,
                 .first_position = begin * kStateBlock};
  };
  const OptimizerOptions options{.stochastic_rounding = true, .seed = 1};
  Optimizer one({slice(whole, 0, kBlocks)}, options);
  Optimizer two({slice(parts, 0, kFirst), slice(parts, kFirst, kBlocks)}, options);
  for (int i = 0; i < 3; ++i) one.step(1e-2), two.step(1e-2);
  EXPECT_TRUE(torch::equal(whole, parts));
}

TEST(Bfloat16, TheSameBitsHoweverASliceIsDivided) {
  torch::manual_seed(7);
  const auto start = torch::randn({kSize}).to(torch::kBFloat16), gradient = torch::randn({kSize});
  for (const auto type : {OptimizerType::adamw, OptimizerType::sgd}) {
    const OptimizerOptions options{.type = type, .stochastic_rounding = true, .seed = 1};
    const auto whole = start.clone(), parts = start.clone();
    Optimizer one({{.parameter = whole,
                    .gradient = gradient.clone(),
                    .weight_decay = 0.1,
                    .first_position = 70}},
                  options);
    const auto part = [&](int64_t begin, int64_t end) {
      return Slice{.parameter = parts.slice(0, begin, end),
                   .gradient = gradient.clone().slice(0, begin, end),
                   .weight_decay = 0.1,
                   .first_position = 70 + begin};
    };
    Optimizer three({part(0, 1001), part(1001, 1002), part(1002, kSize)}, options);
    for (int i = 0; i < 3; ++i) one.step(1e-2), three.step(1e-2);
    EXPECT_TRUE(torch::equal(whole, parts));
    EXPECT_FALSE(torch::equal(whole, start));
  }
}

TEST(Optimizer, LeavesABfloat16CopyOfTheParameter) {
  torch::manual_seed(7);
  for (const auto type : {OptimizerType::adamw, OptimizerType::sgd}) {
    const auto parameter = torch::randn({kSize}), copy = torch::empty({kSize}, torch::kBFloat16);
    Optimizer optimizer({{.parameter = parameter, .gradient = torch::randn({kSize}), .copy = copy}},
                        {.type = type});
    optimizer.step(1e-2);
    EXPECT_TRUE(torch::equal(copy, parameter.to(torch::kBFloat16)));
  }
}

TEST(Optimizer, RefusesStatesThatItCannotKeep) {
  const auto x = torch::zeros({4});
  EXPECT_THROW(Optimizer({{x, x}}, {.state_dtype = torch::kFloat16}), c10::ValueError);
  EXPECT_THROW(Optimizer({{x, x}}, {.type = OptimizerType::sgd, .state_dtype = torch::kBFloat16}),
               c10::ValueError);
}

/// A slice of whole blocks after five updates whose gradients span eleven orders of magnitude.
torch::Tensor after_updates(Slice slice, const std::vector<torch::Tensor>& gradients) {
  Optimizer optimizer({slice}, {});
  for (const auto& gradient : gradients) {
    slice.gradient.copy_(gradient);
    optimizer.step(1e-2);
  }
  return slice.parameter;
}

TEST(Fp8States, CostLittleAccuracyAndNothingWhereASliceIsDivided) {
  torch::manual_seed(7);
  constexpr int64_t kCount = 300 * kStateBlock;  // more than are updated at once
  const auto start = torch::randn({kCount});
  const auto sizes = torch::exp2(-torch::remainder(torch::arange(kCount), 37).to(torch::kFloat32));
  std::vector<torch::Tensor> gradients;
  for (int i = 0; i < 5; ++i) gradients.push_back(torch::randn({kCount}) * sizes);
  const auto run = [&](Treatment treatment, int64_t begin, int64_t end) {
    std::vector<torch::Tensor> own;
    for (const auto& gradient : gradients) own.push_back(gradient.slice(0, begin, end));
    return after_updates({.parameter = start.slice(0, begin, end).clone(),
                          .gradient = torch::empty({end - begin}),
                          .treatment = treatment},
                         own);
  };
  const auto exact = run(Treatment::elements, 0, kCount);
  const auto kept = run(Treatment::blocks, 0, kCount);
  // No update explodes because a mean square was lost before its mean: at most they go other ways.
  EXPECT_LT((kept - exact).abs().max().item<double>(), 2 * 5 * 1e-2);
  EXPECT_LT((kept - exact).norm().item<double>(), 0.5 * (exact - start).norm().item<double>());
  const auto divided = torch::cat({run(Treatment::blocks, 0, 7 * kStateBlock),
                                   run(Treatment::blocks, 7 * kStateBlock, kCount)});
  EXPECT_TRUE(torch::equal(divided, kept));
}

TEST(Fp8States, AreOneAndTwoBytesANumber) {
  const auto x = torch::randn({4 * kStateBlock});
  Optimizer optimizer({{.parameter = x, .gradient = x.clone(), .treatment = Treatment::blocks}},
                      {});
  optimizer.step(1e-3);
  EXPECT_EQ(optimizer.state_bytes(), 4 * kStateBlock * 3 + 4 * 2 * 4);
  EXPECT_EQ(optimizer.states(0)[0].second.scalar_type(), torch::kFloat8_e4m3fn);
  EXPECT_EQ(optimizer.states(0)[2].second.scalar_type(), torch::kHalf);
}

TEST(Float16, ParametersAreUpdatedInFloat32AndRoundedOnce) {
  torch::manual_seed(7);
  for (const auto type : {OptimizerType::adamw, OptimizerType::sgd, OptimizerType::lion}) {
    const auto half = torch::randn({kSize}).to(torch::kHalf), gradient = torch::randn({kSize});
    const auto wide = half.to(torch::kFloat32);
    Optimizer narrow({{half, gradient.clone()}}, {.type = type});
    Optimizer plain({{wide, gradient.clone()}}, {.type = type});
    narrow.step(1e-2), plain.step(1e-2);
    EXPECT_TRUE(torch::equal(half, wide.to(torch::kHalf)));
  }
}

TEST(Fp8Gradient, IsReadTimesItsFactor) {
  const auto codes = torch::randn({kSize}).to(torch::kFloat8_e4m3fn);
  const auto numbers = codes.to(torch::kFloat32) * 0.25;
  for (const auto type : {OptimizerType::adamw, OptimizerType::sgd, OptimizerType::lion}) {
    const auto a = torch::ones({kSize}), b = torch::ones({kSize});
    Optimizer kept({{.parameter = a, .gradient = codes, .gradient_factor = torch::full({1}, 0.25)}},
                   {.type = type});
    const auto gradient = torch::empty({kSize});  // a step may change it
    Optimizer plain({{.parameter = b, .gradient = gradient}}, {.type = type});
    for (int i = 0; i < 3; ++i) {
      gradient.copy_(numbers);
      kept.step(1e-2, 0.5), plain.step(1e-2, 0.5);
    }
    EXPECT_TRUE(torch::allclose(a, b, 1e-6, 1e-7));
  }
}

TEST(Schedule, WarmsUpAndEndsAtTheMinimum) {
  LearningRateOptions options{
      .learning_rate = 1, .min_ratio = 0.1, .warmup_steps = 10, .total_steps = 110};
  for (const auto type :
       {LearningRateSchedule::linear, LearningRateSchedule::cosine, LearningRateSchedule::wsd}) {
    options.type = type;
    EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 9), 1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 10), 1);
    EXPECT_NEAR(learning_rate(options, 109), 0.1, 1e-12);
    EXPECT_NEAR(learning_rate(options, 1000), 0.1, 1e-12);
  }
  options.type = LearningRateSchedule::constant;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1000), 1);
}

TEST(Schedule, HalfWay) {
  LearningRateOptions options{.learning_rate = 2, .min_ratio = 0, .total_steps = 101};
  options.type = LearningRateSchedule::linear;
  EXPECT_NEAR(learning_rate(options, 50), 1, 1e-12);
  options.type = LearningRateSchedule::cosine;
  EXPECT_NEAR(learning_rate(options, 50), 1, 1e-12);
  options.type = LearningRateSchedule::wsd;
  options.decay_steps = 11;
  EXPECT_DOUBLE_EQ(learning_rate(options, 89), 2);
  EXPECT_NEAR(learning_rate(options, 95), 1, 1e-12);
}

}  // namespace
}  // namespace tessera::optim
