#include "tests/own_modules/harness.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "tessera/memory/activation_checkpointing.h"

namespace tessera::own_modules {
namespace {

using parallel::Placement;
using parallel::UnitRule;
using parallel::UnitRuleKind;

constexpr int64_t kSmallUnit = 20;  // parameters

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<torch::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.02).momentum(0.9));
}

void initialise(const std::vector<Net>& nets) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  for (const auto& net : nets) {
    for (auto& parameter : net->parameters()) parameter.normal_(0, 0.3);
  }
}

/// Values of parameters and buffers by name, those of several nets after each other.
using Values = std::vector<std::pair<std::string, torch::Tensor>>;
Values values_of(const std::vector<Net>& nets) {
  Values values;
  for (size_t i = 0; i < nets.size(); ++i) {
    const auto before = i == 0 ? "" : fmt::format("{}:", i);
    for (const auto& item : nets[i]->named_parameters()) {
      values.emplace_back(before + item.key(), item.value().detach().clone());
    }
    for (const auto& item : nets[i]->named_buffers()) {
      values.emplace_back(before + item.key(), item.value().detach().clone());
    }
  }
  return values;
}

struct Result {
  Values first, last;
  std::vector<double> notes;
};

void run_steps(const Case& which, Run& run, int rank, int num_ranks) {
  run.micro_batches = which.traits.micro_batches;
  for (int step = 0; step < which.traits.steps; ++step) {
    const int64_t total = which.traits.rows + step % 2;
    run.rows = {.step = step,
                .begin = total * rank / num_ranks,
                .end = total * (rank + 1) / num_ranks,
                .total = total};
    which.step(run);
  }
}

std::vector<Net> made(const Case& which) {
  auto nets = which.make();
  if (which.traits.initialise) initialise(nets);
  return nets;
}

Result plain_result(const Case& which) {
  Run run(made(which), nullptr, nullptr);
  Result result{.first = values_of(run.nets()), .last = {}, .notes = {}};
  run.make_optimizers(which.traits.optimizer ? which.traits.optimizer : sgd);
  run_steps(which, run, 0, 1);
  result.last = values_of(run.nets());
  result.notes = run.notes();
  return result;
}

/// What tells two tensors apart; empty: they are equal. NaN is equal to nothing.
std::string difference(const std::string& name, const torch::Tensor& actual,
                       const torch::Tensor& expected, double tolerance, double absolute) {
  if (actual.sizes() != expected.sizes()) return name + " has another shape";
  if (expected.numel() == 0) return "";
  const auto dtype = expected.is_complex() ? torch::kComplexDouble : torch::kFloat64;
  const double scale = expected.to(dtype).abs().max().item<double>();
  const double worst = (actual.to(dtype) - expected.to(dtype)).abs().max().item<double>();
  if (worst <= tolerance * scale + absolute) return "";
  return fmt::format("{} differs by {:.3g}, its largest is {:.3g}", name, worst, scale);
}

/// The update of the fp32 slices beside the plain one: norm of their difference over its own.
double error_of_update(Run& run, const Result& plain, const mesh::DeviceMesh& mesh) {
  double error = 0, norm = 0;
  std::map<std::string, std::pair<torch::Tensor, torch::Tensor>> expected;
  for (size_t i = 0; i < plain.last.size(); ++i) {
    expected[plain.last[i].first] = {plain.first[i].second, plain.last[i].second};
  }
  for (size_t i = 0; i < run.nets().size(); ++i) {
    const auto before = i == 0 ? "" : fmt::format("{}:", i);
    for (const auto& part : run.model(i).parts()) {
      if (!part.slice) continue;
      const auto& piece = part.extent;
      const auto& [first, last] = expected.at(before + piece.name);
      const auto piece_of = [&](const torch::Tensor& whole) {
        return whole.to(torch::kFloat64).flatten().narrow(0, piece.begin, piece.values.numel());
      };
      const auto square = [](const torch::Tensor& x) { return x.square().sum().item<double>(); };
      error += square(piece.values.to(torch::kFloat64) - piece_of(last)) / part.replicas;
      norm += square(piece_of(first) - piece_of(last)) / part.replicas;
    }
  }
  const auto sums = torch::tensor({error, norm}, torch::kFloat64);
  mesh.world().all_reduce(sums).wait();
  return std::sqrt(sums[0].item<double>() / std::max(sums[1].item<double>(), 1e-30));
}

void compare(const Case& which, const Setting& setting, Run& run, const Result& plain,
             const mesh::DeviceMesh& mesh) {
  const auto where = which.name + " on " + setting.name;
  const auto notes = torch::tensor(run.notes(), torch::kFloat64);
  mesh.world().all_reduce(notes).wait();
  for (size_t i = 0; i < plain.notes.size(); ++i) {
    const double expected = plain.notes[i], actual = notes[static_cast<int64_t>(i)].item<double>();
    const double tolerance = setting.half ? 0.06 : which.traits.tolerance;
    if (std::abs(actual - expected) <= tolerance * (std::abs(expected) + 0.1)) continue;
    ADD_FAILURE() << where << ": loss " << i << " is " << actual << ", expected " << expected;
    return;
  }
  if (setting.half) {
    const double error = error_of_update(run, plain, mesh);
    EXPECT_LE(error, 0.1) << where << ": the update is another";
  }
  for (size_t i = 0; i < run.nets().size(); ++i) run.model(i).unshard();
  const auto actual = values_of(run.nets());
  ASSERT_EQ(actual.size(), plain.last.size()) << where;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double tolerance = setting.half ? 3e-2 : which.traits.tolerance;
    const auto text = difference(actual[i].first, actual[i].second, plain.last[i].second, tolerance,
                                 setting.half ? 1e-3 : tolerance / 100);
    if (text.empty()) continue;
    ADD_FAILURE() << where << ": " << text;
    return;
  }
}

/// The unit rules to try: by size, by the name and the class of the last and the first child, and
/// one unit.
std::vector<std::pair<std::string, UnitRule>> rules_for(const Case& which) {
  std::vector<std::pair<std::string, UnitRule>> rules{
      {"by size", {.kind = UnitRuleKind::by_size, .min_num_params = kSmallUnit}},
      {"whole model", {.kind = UnitRuleKind::whole_model}}};
  std::vector<std::string> names, classes;
  const auto nets = which.make();
  for (const auto& item : nets.front()->named_modules("", /*include_self=*/false)) {
    auto* module = dynamic_cast<nn::Hookable*>(item.value().get());
    if (module == nullptr || item.value()->parameters().empty()) continue;
    names.push_back(item.key());
    auto name = module->name();
    name.erase(0, name.rfind("::") + 2);
    classes.push_back(name.substr(0, name.rfind("Impl")));
  }
  // Rules that name something need it in every net of the case.
  if (names.empty() || nets.size() > 1) return rules;
  rules.push_back({"by name", {.kind = UnitRuleKind::by_name, .patterns = {names.back()}}});
  rules.push_back({"by class", {.kind = UnitRuleKind::by_class, .classes = {classes.front()}}});
  return rules;
}

const std::map<Placement, std::string> kPlacements{{Placement::replicate, "replicate"},
                                                   {Placement::shard_optimizer, "shard_optimizer"},
                                                   {Placement::shard_gradients, "shard_gradients"},
                                                   {Placement::full_shard, "full_shard"}};

/// The settings beside placements and rules.
std::vector<Setting> variants_of(const Setting& base, const Case& which) {
  std::vector<Setting> variants;
  const auto add = [&](const std::string& name) -> Setting& {
    variants.push_back(base);
    variants.back().name += ", " + name;
    variants.back().options.check_parameters = false;
    return variants.back();
  };
  add("kept after forward").options.unit.reshard_after_forward = false;
  add("kept in part").options.unit.reshard_after_forward = 1;
  add("offloaded").options.offload.offload_params = true;
  add("overrides").overrides = true;
  auto& narrow = add("one gathered unit").options;
  narrow.max_gathered_units = 1, narrow.forward_prefetch = false;
  narrow.backward_prefetch = parallel::BackwardPrefetch::post;
  if (which.traits.micro_batches > 1) add("synchronised once").sync_each = false;
  if (which.traits.half) {
    auto& half = add("bf16");
    half.half = true;
    half.options.unit.mixed_precision = {.param_dtype = torch::kBFloat16,
                                         .reduce_dtype = torch::kFloat32,
                                         .cast_constant_inputs = true};
  }
  return variants;
}

std::vector<Setting> with_recomputation(const std::vector<Setting>& settings, const Case& which) {
  std::vector<Setting> result;
  const auto nets = which.make();
  const auto names = nets.front()->named_modules();
  if (!which.traits.recompute || std::ranges::none_of(names, [](const auto& item) {
        return item.key().starts_with("block");
      })) {
    return result;
  }
  using Recompute = std::function<void(nn::Hookable&)>;
  const std::vector<std::pair<std::string, Recompute>> ways{
      {"recomputed", [](nn::Hookable& block) { memory::checkpoint(block); }},
      {"recomputed in part",
       [](nn::Hookable& block) {
         memory::checkpoint(block, {.mode = memory::CheckpointMode::selective});
       }},
      {"recomputed within recomputed", [](nn::Hookable& block) {
         memory::checkpoint(block);
         for (const auto& child : block.children()) {
           auto* inner = dynamic_cast<nn::Hookable*>(child.get());
           const auto recomputed = [](const nn::Hooks& hooks) { return hooks.around != nullptr; };
           if (inner == nullptr || std::ranges::any_of(inner->hooks(), recomputed)) continue;
           memory::checkpoint(*inner);
         }
       }}};
  for (const auto& [way, recompute] : ways) {
    for (auto setting : settings) {
      setting.options.check_parameters = false;
      setting.name += ", " + way;
      setting.recompute = recompute;
      result.push_back(std::move(setting));
      if (way != ways.front().first) break;  // units by size alone: the others take long
    }
  }
  return result;
}

std::vector<Setting> settings_for(const Case& which, const mesh::DeviceMesh& mesh) {
  const bool hybrid = mesh.axis("dp_replicate").size() > 1;
  std::vector<Setting> settings, to_vary;
  for (const auto& [rule_name, rule] : rules_for(which)) {
    for (const auto& [placement, placement_name] : kPlacements) {
      Setting setting{.name = fmt::format("{} ranks{}, {}, {}", mesh.size(), hybrid ? " 2 x 2" : "",
                                          placement_name, rule_name),
                      .num_ranks = mesh.size(),
                      .hybrid = hybrid,
                      .options = {},
                      .rule = rule};
      setting.options.gradient_divide_factor = 1;
      setting.options.unit.placement = placement;
      setting.options.check_parameters = placement == Placement::full_shard;
      const bool varied =
          placement == Placement::full_shard &&
          (rule.kind == UnitRuleKind::by_size || rule.kind == UnitRuleKind::by_name);
      if (varied) to_vary.push_back(setting);
      if (!hybrid || varied) settings.push_back(std::move(setting));
    }
  }
  const auto recomputed = with_recomputation(to_vary, which);
  settings.insert(settings.end(), recomputed.begin(), recomputed.end());
  for (const auto& base : to_vary) {
    const auto variants = variants_of(base, which);
    settings.insert(settings.end(), variants.begin(), variants.end());
    break;  // of the units by size
  }
  std::erase_if(settings, [&](const Setting& setting) {
    return std::ranges::any_of(which.traits.left_out,
                               [&](const auto& left_out) { return left_out.where(setting); });
  });
  return settings;
}

/// Runs one setting. False: an error came, and this rank is out of step with the others.
bool run_setting(const Case& which, const Setting& setting, const Result& plain,
                 const mesh::DeviceMesh& mesh) {
  try {
    auto nets = made(which);
    if (setting.recompute) {
      for (const auto& item : nets.front()->named_children()) {
        auto* block = dynamic_cast<nn::Hookable*>(item.value().get());
        if (block != nullptr && item.key().starts_with("block")) setting.recompute(*block);
      }
    }
    Run run(std::move(nets), &setting, &mesh);
    run.make_optimizers(which.traits.optimizer ? which.traits.optimizer : sgd);
    run_steps(which, run, mesh.rank(), mesh.size());
    compare(which, setting, run, plain, mesh);
    return true;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    ADD_FAILURE() << which.name << " on " << setting.name << ": " << text.substr(0, 400);
    return false;
  }
}

}  // namespace

torch::Tensor Rows::randn(std::vector<int64_t> sizes, int tag) const {
  torch::manual_seed(1000 + 100 * tag + step);
  sizes.insert(sizes.begin(), total);
  return part(torch::randn(sizes));
}

torch::Tensor Rows::ids(int64_t limit, std::vector<int64_t> sizes, int tag) const {
  torch::manual_seed(2000 + 100 * tag + step);
  sizes.insert(sizes.begin(), total);
  return part(torch::randint(limit, sizes, torch::kInt64));
}

torch::Tensor Rows::loss(const torch::Tensor& terms) const {
  const bool half = terms.scalar_type() == torch::kBFloat16;
  return (half ? terms.to(torch::kFloat32) : terms).sum() / static_cast<double>(total);
}

Run::Run(std::vector<Net> nets, const Setting* setting, const mesh::DeviceMesh* mesh)
    : nets_(std::move(nets)), setting_(setting) {
  if (setting == nullptr) return;
  for (const auto& net : nets_) {
    auto options = setting->options;
    if (setting->overrides) {
      const auto units = parallel::make_units(*net, setting->rule);
      auto unit = options.unit;
      unit.placement = Placement::shard_gradients;
      options.overrides.push_back({units.back().name, unit});
      unit.placement = Placement::replicate;
      options.overrides.push_back({units.front().name, unit});
    }
    models_.push_back(parallel::fully_shard(*net, *mesh, options, setting->rule));
  }
}

bool Run::full_shard() const {
  return setting_ != nullptr && setting_->options.unit.placement == Placement::full_shard;
}

void Run::make_optimizers(const OptimizerMaker& make) {
  for (size_t i = 0; i < nets_.size(); ++i) {
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : sharded() ? model(i).parameters() : nets_[i]->parameters()) {
      // LibTorch's optimizers would update tied ones twice.
      const auto same = [&](const auto& other) { return other.is_same(parameter); };
      if (parameter.requires_grad() && std::ranges::none_of(parameters, same)) {
        parameters.push_back(parameter);
      }
    }
    optimizers_.push_back(make(std::move(parameters)));
  }
}

// The first micro-batch is the smaller one. What they note is added up: a process's micro-batches
// are other rows than the whole batch's.
void Run::for_micro_batches(const std::function<void(const Rows&)>& each) {
  const size_t first_note = next_note_;
  for (int i = 0; i < micro_batches; ++i) {
    next_note_ = first_note;
    auto part = rows;
    part.begin = rows.begin + rows.size() * i * i / (micro_batches * micro_batches);
    part.end = rows.begin + rows.size() * (i + 1) * (i + 1) / (micro_batches * micro_batches);
    const bool last = i + 1 == micro_batches;
    for (size_t net = 0; net < models_.size(); ++net) {
      set_is_last_backward(last, net);
      set_requires_gradient_sync(last || setting_->sync_each, net);
    }
    each(part);
  }
}

void Run::note(const torch::Tensor& value) {
  if (next_note_ == notes_.size()) notes_.push_back(0);
  notes_[next_note_++] += value.detach().item<double>();
}

void Run::backward(const torch::Tensor& loss, size_t index) {
  note(loss);
  loss.backward();
  finish_backward(index);
}

void Run::finish_backward(size_t index) {
  if (sharded()) model(index).finish_backward();
}

void Run::update(size_t index) {
  optimizer(index).step();
  forget(index);
}

void Run::forget(size_t index) {
  if (sharded()) {
    model(index).finish_step();
  } else {
    nets_.at(index)->zero_grad();
  }
}

void Run::set_is_last_backward(bool last, size_t index) {
  if (sharded()) model(index).set_is_last_backward(last);
}
void Run::set_requires_gradient_sync(bool required, size_t index) {
  if (sharded()) model(index).set_requires_gradient_sync(required);
}
void Run::unshard(size_t index) {
  if (sharded()) model(index).unshard();
}
void Run::reshard(size_t index) {
  if (sharded()) model(index).reshard();
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& theme : {sharing_cases(), loop_cases(), parameter_cases(), layer_cases(),
                            flow_cases(), structure_cases(), result_cases()}) {
    cases.insert(cases.end(), theme.begin(), theme.end());
  }
  const char* chosen = std::getenv("TESSERA_OWN_MODULE");
  if (chosen != nullptr) {
    std::erase_if(cases,
                  [&](const Case& which) { return which.name.find(chosen) == std::string::npos; });
  }
  return cases;
}

void run_cases(const mesh::DeviceMesh& mesh) {
  for (const auto& which : all_cases()) {
    const auto settings = settings_for(which, mesh);
    if (settings.empty()) continue;
    std::optional<Result> plain;
    try {
      plain = plain_result(which);
    } catch (const std::exception& error) {
      ADD_FAILURE() << which.name << " is no case: plain LibTorch says " << error.what();
      continue;
    }
    for (const auto& setting : settings) {
      if (!run_setting(which, setting, *plain, mesh) && mesh.size() > 1) return;
    }
  }
}

}  // namespace tessera::own_modules
