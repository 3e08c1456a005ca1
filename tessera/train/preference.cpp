#include "tessera/train/preference.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::train {
namespace {

/// The members of PreferenceSums, in one order.
constexpr std::array kMembers{&PreferenceSums::pairs,         &PreferenceSums::chosen_tokens,
                              &PreferenceSums::loss,          &PreferenceSums::cross_entropy,
                              &PreferenceSums::chosen_reward, &PreferenceSums::rejected_reward,
                              &PreferenceSums::accurate,      &PreferenceSums::chosen,
                              &PreferenceSums::rejected,      &PreferenceSums::log_odds,
                              &PreferenceSums::log_odds_ratio};

/// A pair of answers, without their references for a loss that has none.
std::array<Answer, 2> answers_of(const data::Batch& batch, size_t pair,
                                 const std::vector<double>& log_probabilities,
                                 const std::vector<double>* reference) {
  std::array<Answer, 2> answers;
  for (size_t i = 0; i < 2; ++i) {
    const auto& document = batch.contents[2 * pair + i];
    answers[i] = {
        .log_probability = log_probabilities[2 * pair + i],
        .reference = reference == nullptr ? 0 : reference->at(static_cast<size_t>(document.index)),
        .num_tokens = static_cast<double>(document.num_tokens)};
  }
  return answers;
}

void add(PreferenceSums& sums, const std::array<Answer, 2>& answers, const PairLoss& found,
         const config::PreferenceSection& section) {
  const bool by_length = section.loss == PreferenceLoss::orpo;
  const auto told = [&](const Answer& answer) {
    return by_length ? answer.log_probability / answer.num_tokens : answer.log_probability;
  };
  sums.pairs += 1;
  sums.chosen_tokens += answers[0].num_tokens;
  sums.loss += found.value;
  sums.cross_entropy -= answers[0].log_probability;
  sums.chosen_reward += found.chosen_reward;
  sums.rejected_reward += found.rejected_reward;
  const bool is_equal = found.chosen_reward == found.rejected_reward;
  sums.accurate += is_equal ? 0.5 : found.chosen_reward > found.rejected_reward ? 1 : 0;
  sums.chosen += told(answers[0]);
  sums.rejected += told(answers[1]);
  sums.log_odds += found.log_odds;
  if (by_length) sums.log_odds_ratio -= found.value / section.beta;
}

}  // namespace

void Amounts::add(const data::Batch& batch) {
  tokens += static_cast<double>(batch.num_tokens);
  positions += static_cast<double>(batch.inputs.numel());
  rows += static_cast<double>(batch.inputs.size(0));
  pairs += static_cast<double>(batch.contents.size()) / 2;
  for (size_t i = 0; i < batch.contents.size(); i += 2) {
    chosen_tokens += static_cast<double>(batch.contents[i].num_tokens);
  }
}

std::vector<double> PreferenceSums::values() const {
  std::vector<double> values;
  for (const auto member : kMembers) values.push_back(this->*member);
  return values;
}

PreferenceSums PreferenceSums::of(const std::vector<double>& values) {
  PreferenceSums sums;
  for (size_t i = 0; i < kMembers.size(); ++i) sums.*kMembers[i] = values.at(i);
  return sums;
}

double loss_of(const PreferenceSums& sums, PreferenceLoss loss) {
  const double of_pairs = sums.loss / sums.pairs;
  return loss == PreferenceLoss::orpo ? of_pairs + sums.cross_entropy / sums.chosen_tokens
                                      : of_pairs;
}

std::vector<report::Figure> figures_of(const PreferenceSums& sums, PreferenceLoss loss) {
  const auto mean = [&](double sum) { return sum / sums.pairs; };
  std::vector<report::Figure> figures{
      {"rewards/chosen", mean(sums.chosen_reward), ""},
      {"rewards/rejected", mean(sums.rejected_reward), ""},
      {"rewards/accuracies", mean(sums.accurate), "acc"},
      {"rewards/margins", mean(sums.chosen_reward - sums.rejected_reward), "margin"},
      {"logps/chosen", mean(sums.chosen), ""},
      {"logps/rejected", mean(sums.rejected), ""}};
  if (loss != PreferenceLoss::orpo) return figures;
  figures.push_back({"nll_loss", sums.cross_entropy / sums.chosen_tokens, ""});
  figures.push_back({"log_odds_ratio", mean(sums.log_odds_ratio), ""});
  figures.push_back({"log_odds_chosen", mean(sums.log_odds), ""});
  return figures;
}

std::vector<double> log_probabilities(const data::Batch& batch, const at::Tensor& losses) {
  const auto values = losses.cpu();
  const auto* loss = values.const_data_ptr<double>();
  std::vector<double> sums;
  for (const auto& document : batch.contents) {
    double sum = 0;
    for (int64_t i = document.begin; i < document.end; ++i) sum -= loss[i];
    sums.push_back(sum);
  }
  return sums;
}

kernels::TokenLoss preference_loss(const config::PreferenceSection& section,
                                   const data::Batch& batch, const Amounts& amounts, double scale,
                                   std::shared_ptr<const std::vector<double>> reference,
                                   PreferenceSums& sums) {
  const PairLossOptions options{
      .loss = section.loss, .beta = section.beta, .label_smoothing = section.label_smoothing};
  const double of_token = section.loss == PreferenceLoss::orpo ? scale / amounts.chosen_tokens : 0;
  const double of_pair = scale / amounts.pairs;
  return kernels::TokenLoss(
      [=, &batch, &sums, reference = std::move(reference)](const at::Tensor& losses) {
        const auto found = log_probabilities(batch, losses);
        kernels::Objective objective{.value = 0, .slopes = at::zeros({losses.size(0)})};
        auto* slopes = objective.slopes.mutable_data_ptr<float>();
        const auto set = [&](const data::BatchDocument& document, double slope) {
          std::fill(slopes + document.begin, slopes + document.end, static_cast<float>(slope));
        };
        for (size_t pair = 0; 2 * pair < found.size(); ++pair) {
          const auto answers = answers_of(batch, pair, found, reference.get());
          const auto loss = pair_loss(answers[0], answers[1], options);
          objective.value += of_pair * loss.value - of_token * answers[0].log_probability;
          // Token losses are log-probabilities with the other sign.
          set(batch.contents[2 * pair], of_token - of_pair * loss.chosen_slope);
          set(batch.contents[2 * pair + 1], -of_pair * loss.rejected_slope);
          add(sums, answers, loss, section);
        }
        return objective;
      });
}

}  // namespace tessera::train
