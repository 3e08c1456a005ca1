#include "tessera/train/pair_loss.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>

namespace tessera::train {
namespace {

using torch::Tensor;

Tensor leaf(double value) { return torch::tensor(value, torch::kFloat64).requires_grad_(); }

/// The losses as TRL's trainers write them (trl/trainer/dpo_trainer.py, experimental/orpo), by
/// LibTorch's operators; derivatives by autograd.
Tensor as_trl(const PairLossOptions& options, const Tensor& chosen, const Tensor& rejected,
              const Answer& of_chosen, const Answer& of_rejected) {
  const double beta = options.beta, smoothing = options.label_smoothing;
  if (options.loss == PreferenceLoss::orpo) {
    const auto c = chosen / of_chosen.num_tokens, r = rejected / of_rejected.num_tokens;
    const auto log_odds = (c - r) - (torch::log1p(-c.exp()) - torch::log1p(-r.exp()));
    return -beta * torch::log_sigmoid(log_odds);
  }
  const auto c = chosen - of_chosen.reference, r = rejected - of_rejected.reference;
  if (options.loss == PreferenceLoss::ipo) {
    return (c / of_chosen.num_tokens - r / of_rejected.num_tokens - 1 / (2 * beta)).square();
  }
  const auto delta = c - r;
  return -torch::log_sigmoid(beta * delta) * (1 - smoothing) -
         torch::log_sigmoid(-beta * delta) * smoothing;
}

void expect_as_trl(const PairLossOptions& options, const Answer& chosen, const Answer& rejected) {
  const auto c = leaf(chosen.log_probability), r = leaf(rejected.log_probability);
  const auto expected = as_trl(options, c, r, chosen, rejected);
  const auto slopes = torch::autograd::grad({expected}, {c, r});
  const auto found = pair_loss(chosen, rejected, options);
  const auto near = [](double value, double wanted) {
    EXPECT_NEAR(value, wanted, 1e-12 * std::max(1.0, std::abs(wanted)));
  };
  near(found.value, expected.item<double>());
  near(found.chosen_slope, slopes[0].item<double>());
  near(found.rejected_slope, slopes[1].item<double>());
}

TEST(PairLoss, FormulasAndSlopesAreTrls) {
  const Answer chosen{.log_probability = -12.5, .reference = -14, .num_tokens = 7};
  const Answer rejected{.log_probability = -30, .reference = -27.25, .num_tokens = 11};
  for (const auto loss : {PreferenceLoss::sigmoid, PreferenceLoss::ipo, PreferenceLoss::orpo}) {
    for (const double beta : {0.1, 0.5, 2.0}) {
      for (const double smoothing : {0.0, 0.2}) {
        if (smoothing > 0 && loss != PreferenceLoss::sigmoid) continue;
        const PairLossOptions options{.loss = loss, .beta = beta, .label_smoothing = smoothing};
        expect_as_trl(options, chosen, rejected);
        expect_as_trl(options, rejected, chosen);
      }
    }
  }
}

TEST(PairLoss, StartsAtLogTwo) {
  const Answer answer{.log_probability = -5, .reference = -5, .num_tokens = 3};
  for (const double smoothing : {0.0, 0.3}) {
    const auto found = pair_loss(answer, answer, {.label_smoothing = smoothing});
    EXPECT_DOUBLE_EQ(found.value, std::log(2));
    EXPECT_EQ(found.chosen_reward - found.rejected_reward, 0);
  }
  EXPECT_DOUBLE_EQ(pair_loss(answer, answer, {.loss = PreferenceLoss::ipo}).value, 25);
}

TEST(PairLoss, Rewards) {
  const Answer chosen{.log_probability = -10, .reference = -12, .num_tokens = 4};
  const Answer rejected{.log_probability = -20, .reference = -17, .num_tokens = 8};
  for (const auto loss : {PreferenceLoss::sigmoid, PreferenceLoss::ipo}) {
    const auto found = pair_loss(chosen, rejected, {.loss = loss, .beta = 0.5});
    EXPECT_DOUBLE_EQ(found.chosen_reward, 1);
    EXPECT_DOUBLE_EQ(found.rejected_reward, -1.5);
  }
  const auto odds = pair_loss(chosen, rejected, {.loss = PreferenceLoss::orpo, .beta = 0.5});
  EXPECT_DOUBLE_EQ(odds.chosen_reward, -1.25);
  EXPECT_DOUBLE_EQ(odds.rejected_reward, -1.25);
  EXPECT_DOUBLE_EQ(odds.log_odds, 0);
}

TEST(PairLoss, FarFromEachOther) {
  const Answer near{.log_probability = -1e-9, .reference = -1e4, .num_tokens = 1};
  const Answer far{.log_probability = -1e4, .reference = -1e-9, .num_tokens = 1};
  for (const auto loss : {PreferenceLoss::sigmoid, PreferenceLoss::ipo, PreferenceLoss::orpo}) {
    for (const auto& [chosen, rejected] : {std::pair(near, far), std::pair(far, near)}) {
      const auto found = pair_loss(chosen, rejected, {.loss = loss});
      EXPECT_TRUE(std::isfinite(found.value) && std::isfinite(found.chosen_slope) &&
                  std::isfinite(found.rejected_slope));
    }
  }
}

}  // namespace
}  // namespace tessera::train
