#include "tessera/train/balance.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/special_entr.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/autograd/attached_loss.h"
#include "tessera/nn/recomputation.h"

namespace tessera::train {
namespace {

using torch::Tensor;

/// Sums over the positions that a router saw: choices of each expert [E], its probabilities [E], and
/// then these.
enum Column : int64_t { kEntropy, kSquaredLogSumExp, kRowLosses, kDropped, kNumColumns };

Tensor probabilities_of(const nn::RouterCall& call, nn::RouterScores scores) {
  switch (scores) {
    case nn::RouterScores::softmax:
      return call.scores;
    case nn::RouterScores::sigmoid:
      return call.scores / (call.scores.sum(1, /*keepdim=*/true) + 1e-20);
  }
  TORCH_INTERNAL_ASSERT(false);
}

nn::RouterTraining training_of(const config::MoeSection& section) {
  return {.capacity = {.factor = section.capacity_factor,
                       .eval_factor = section.eval_capacity_factor,
                       .least = section.min_capacity,
                       .policy = section.drop_policy},
          .jitter = section.input_jitter,
          .sampling = section.sampling,
          .takes_turns = section.force_balance};
}

void add_figures(const report::ExpertLoad& load, std::vector<report::Figure>& figures) {
  const auto add = [&](const char* name, double value) {
    figures.push_back(
        {.tag = fmt::format("moe/layer_{}/{}", load.layer, name), .value = value, .shown = ""});
  };
  add("max_violation", load.max_violation());
  add("entropy", load.entropy);
  if (load.dropped) add("dropped", *load.dropped);
}

/// The sum over rows of E sum_i f_i P_i.
Tensor row_losses(const nn::RouterCall& call, const Tensor& probabilities) {
  const auto rows = call.num_sequences, num_experts = probabilities.size(1);
  const auto chosen = call.experts.reshape({rows, -1});
  const auto counts =
      torch::zeros({rows, num_experts}, probabilities.options())
          .scatter_add_(1, chosen,
                        torch::ones({1, 1}, probabilities.options()).expand(chosen.sizes()));
  const auto shares = counts / static_cast<double>(chosen.size(1));
  const auto means = probabilities.view({rows, -1, num_experts}).mean(1);
  return static_cast<double>(num_experts) * (shares * means).sum();
}

}  // namespace

std::vector<LayerRouter> routers_of(const models::LanguageModel& model) {
  std::vector<LayerRouter> routers;
  const auto layers = model.layout().layers;
  for (const auto& item : model.named_modules()) {
    auto router = std::dynamic_pointer_cast<nn::RouterImpl>(item.value());
    if (!router) continue;
    const auto layer = std::ranges::find_if(
        layers, [&](const auto& path) { return item.key().starts_with(path + "."); });
    TORCH_INTERNAL_ASSERT(layer != layers.end());
    routers.push_back({.layer = layer - layers.begin(), .path = item.key(), .router = router});
  }
  std::ranges::stable_sort(routers, {}, &LayerRouter::layer);
  return routers;
}

void take_selection_biases(const std::vector<LayerRouter>& routers,
                           const checkpoint::Pretrained& stored, torch::Device device) {
  // A file has those of all layers or of none.
  const bool any = std::ranges::any_of(
      routers, [&](const auto& layer) { return stored.contains(layer.bias_name()); });
  for (const auto& layer : routers) {
    const auto name = layer.bias_name();
    const auto& options = layer.router->options();
    if (!any && !options.selection_bias) continue;
    const auto bias =
        torch::zeros({options.num_experts}, torch::dtype(torch::kFloat32).device(device));
    stored.expect(name, bias.sizes());
    stored.copy_part(name, 0, bias);
    layer.router->selection_bias = bias;
  }
}

std::vector<LayerRouter> routers_of(const models::LanguageModel& model,
                                    const std::optional<checkpoint::Pretrained>& stored,
                                    torch::Device device) {
  auto routers = routers_of(model);
  if (stored) take_selection_biases(routers, *stored, device);
  return routers;
}

std::unique_ptr<Balance> make_balance(std::vector<LayerRouter> routers,
                                      const models::LanguageModel& model,
                                      const config::MoeSection& section,
                                      const mesh::DeviceMesh& mesh) {
  if (routers.empty()) return nullptr;
  return std::make_unique<Balance>(std::move(routers), model, section, mesh.all_of_training(),
                                   mesh.axis("tp"), mesh.device());
}

Balance::Balance(std::vector<LayerRouter> routers, const models::LanguageModel& model,
                 const config::MoeSection& section, mesh::Axis world, mesh::Axis tensor_axis,
                 torch::Device device)
    : all_(std::move(routers)),
      section_(section),
      world_(std::move(world)),
      tensor_axis_(std::move(tensor_axis)),
      num_experts_(all_.front().router->options().num_experts),
      top_k_(all_.front().router->options().top_k) {
  const auto parameters = model.named_parameters();
  const auto number = torch::dtype(torch::kFloat32).device(device);
  const auto has_bias = [](const LayerRouter& layer) {
    return layer.router->selection_bias.defined() || layer.router->options().selection_bias;
  };
  const auto count = static_cast<int64_t>(all_.size());
  seen_ = torch::zeros({count, 2 * num_experts_ + kNumColumns}, number.dtype(torch::kFloat64));
  slopes_ = torch::zeros({count, num_experts_}, number);
  row_slope_ = torch::zeros({}, number), z_slope_ = torch::zeros({}, number);
  for (size_t i = 0; i < all_.size(); ++i) {
    auto& router = *all_[i].router;
    router.training = training_of(section);
    router.name = all_[i].path;
    is_here_.push_back(parameters.contains(all_[i].path + ".weight"));
    router.balance = [this, i](const nn::RouterCall& call, const Tensor& weights) {
      return see(i, call, weights);
    };
  }
  if (section.selection_bias_rate > 0 || std::ranges::any_of(all_, has_bias)) add_biases();
}

void Balance::add_biases() {
  has_biases_ = true;
  for (auto& layer : all_) {
    auto& bias = layer.router->selection_bias;
    if (!bias.defined()) bias = torch::zeros({num_experts_}, slopes_.options());
  }
}

Balance::~Balance() {
  for (const auto& layer : all_) layer.router->balance = nullptr;
}

std::vector<LayerRouter> Balance::here() const {
  std::vector<LayerRouter> found;
  for (size_t i = 0; i < all_.size(); ++i) {
    if (is_here_[i]) found.push_back(all_[i]);
  }
  return found;
}

bool Balance::needs_counts() const { return is_of_counts(section_.aux_loss); }

void Balance::begin_step(const BalanceAmounts& amounts) {
  amounts_ = amounts;
  in_step_ = true, knows_counts_ = false;
  seen_.zero_();
  // The ranks of tp each teach the router a part of its gradient, which are summed.
  const double share = amounts.loss_scale / tensor_axis_.size();
  row_slope_.fill_(share * section_.aux_coefficient / amounts.rows);
  z_slope_.fill_(share * section_.z_coefficient / amounts.positions);
}

void Balance::count_anew() { seen_.zero_(); }

Tensor Balance::summed() const {
  auto sums = tensor_axis_.rank() == 0 ? seen_.clone() : torch::zeros_like(seen_);
  world_.all_reduce(sums, comm::ReduceOp::sum).wait();
  return sums;
}

void Balance::know_counts() {
  if (!needs_counts() || std::exchange(knows_counts_, true)) return;
  const auto counts = summed().narrow(1, 0, num_experts_);
  const auto t = amounts_.positions, layers = static_cast<double>(all_.size());
  const double factor = amounts_.loss_scale / tensor_axis_.size() * section_.aux_coefficient *
                        static_cast<double>(num_experts_) / t;
  if (section_.aux_loss == AuxLoss::batch) {
    slopes_.copy_(counts * (factor / (t * static_cast<double>(top_k_))));
  } else {
    slopes_.copy_(counts.sum(0) * (factor / (t * layers * layers)));
  }
}

Tensor Balance::see(size_t index, const nn::RouterCall& call, const Tensor& weights) {
  if (!in_step_) return weights;
  const auto row = static_cast<int64_t>(index);
  const auto scores = all_[index].router->options().scores;
  const auto probabilities = probabilities_of(call, scores);
  const bool by_rows = section_.aux_loss == AuxLoss::sequence;
  const auto of_rows = by_rows ? row_losses(call, probabilities) : Tensor();
  const auto log_sum_exp = call.logits.logsumexp(1);
  if (!nn::Recomputation::ran_before()) {
    const torch::NoGradGuard no_grad;
    const auto seen = seen_[row];
    const auto chosen = call.experts.flatten();  // not bincount, which asks a GPU for the largest
    seen.narrow(0, 0, num_experts_)
        .scatter_add_(0, chosen, torch::ones_like(chosen, seen.scalar_type()));
    seen.narrow(0, num_experts_, num_experts_).add_(probabilities.sum(0, false, torch::kFloat64));
    const auto rest = seen.narrow(0, 2 * num_experts_, kNumColumns);
    rest[kEntropy].add_(at::special_entr(probabilities).sum(torch::kFloat64));
    rest[kSquaredLogSumExp].add_(log_sum_exp.square().sum(torch::kFloat64));
    if (by_rows) rest[kRowLosses].add_(of_rows);
    if (call.kept.defined()) rest[kDropped].add_(call.kept.logical_not().sum());
  }
  if (!torch::GradMode::is_enabled() || !call.logits.requires_grad()) return weights;
  auto result = weights;
  if (by_rows) result = autograd::attach_loss(result, of_rows, row_slope_);
  if (needs_counts()) result = autograd::attach_loss(result, probabilities.sum(0), slopes_[row]);
  if (section_.z_coefficient > 0) {
    result = autograd::attach_loss(result, log_sum_exp.square().sum(), z_slope_);
  }
  return result;
}

/// The mean over layers of what each adds to the loss per unit of the coefficient; of transformers' what
/// all add together.
double Balance::aux_loss(const Tensor& sums) const {
  const auto e = static_cast<double>(num_experts_), k = static_cast<double>(top_k_);
  const auto shares = sums.narrow(1, 0, num_experts_) / amounts_.positions;  // of K choices
  const auto means = sums.narrow(1, num_experts_, num_experts_) / amounts_.positions;
  switch (section_.aux_loss) {
    case AuxLoss::none:
    case AuxLoss::batch:
      return e / k * (shares * means).sum(1).mean().item<double>();
    case AuxLoss::sequence:
      return sums.select(1, 2 * num_experts_ + kRowLosses).mean().item<double>() / amounts_.rows;
    case AuxLoss::transformers:
      return e * (shares.mean(0) * means.mean(0)).sum().item<double>();
  }
  TORCH_INTERNAL_ASSERT(false);
}

BalanceResult Balance::finish_step(bool skipped) {
  in_step_ = false;
  const auto on_device = summed();
  const auto counts = on_device.narrow(1, 0, num_experts_);
  if (!skipped && section_.selection_bias_rate > 0) {
    const auto lacks = counts.mean(1, /*keepdim=*/true) - counts;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (!is_here_[i]) continue;
      all_[i].router->selection_bias.add_(lacks[static_cast<int64_t>(i)].sign(),
                                          section_.selection_bias_rate);
    }
  }
  const auto sums = on_device.cpu();
  const double positions = amounts_.positions;
  const auto rest = sums.narrow(1, 2 * num_experts_, kNumColumns) / positions;
  const double most_entropy = std::max(std::log(static_cast<double>(num_experts_)), 1e-20);
  BalanceResult result;
  double worst = 0;
  const auto choices = static_cast<double>(top_k_);  // of a position
  std::vector<report::Figure> by_layer;
  for (size_t i = 0; i < all_.size(); ++i) {
    const auto row = sums[static_cast<int64_t>(i)].narrow(0, 0, num_experts_).contiguous();
    report::ExpertLoad load{
        .layer = all_[i].layer,
        .tokens = {},
        .entropy = rest[static_cast<int64_t>(i)][kEntropy].item<double>() / most_entropy};
    for (int64_t e = 0; e < num_experts_; ++e) {
      load.tokens.push_back(std::llround(row[e].item<double>()));
    }
    if (section_.capacity_factor) {
      load.dropped = rest[static_cast<int64_t>(i)][kDropped].item<double>() / choices;
    }
    worst = std::max(worst, load.max_violation());
    add_figures(load, by_layer);
    result.layers.push_back(std::move(load));
  }
  const auto means = rest.mean(0);
  result.figures = {
      {.tag = "moe/aux_loss",
       .value = aux_loss(sums),
       .shown = section_.aux_loss == AuxLoss::none ? "" : "aux"},
      {.tag = "moe/z_loss", .value = means[kSquaredLogSumExp].item<double>(), .shown = ""},
      {.tag = "moe/entropy", .value = means[kEntropy].item<double>() / most_entropy, .shown = ""},
      {.tag = "moe/max_violation", .value = worst, .shown = "MaxVio"}};
  if (section_.capacity_factor) {
    result.figures.push_back({.tag = "moe/dropped",
                              .value = means[kDropped].item<double>() / choices,
                              .shown = "dropped"});
  }
  std::ranges::move(by_layer, std::back_inserter(result.figures));
  return result;
}

}  // namespace tessera::train
