// What an Accelerator does in the cases that cases.py has, too, line by line.
//
//     tessera launch -n N accelerate_cases FILE
//
// Rank 0 writes a line for each result to FILE, as cases.py does; compare.cpp compares the two.
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tessera/train/lr_scheduler.h"
#include "tests/accelerate/problem.h"

namespace {

namespace lr = tessera::lr_scheduler;
using namespace problem;

// ---- the cases ---------------------------------------------------------------------------------

struct TrainOptions {
  int64_t rows = 16, batch_size = 2;
  int epochs = 1;
  std::function<std::optional<double>(Net&)> clip = {};
};

template <typename Optimizer>
void train(Accelerator& accelerator, const std::string& name, Net net, Optimizer optimizer,
           const TrainOptions& options = {}) {
  auto [model, prepared, loader] =
      accelerator.prepare(net, optimizer, make_loader(options.rows, options.batch_size));
  Numbers losses, norms;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    for (auto& [data, target] : loader) {
      const auto scope = accelerator.accumulate(model);
      auto loss = loss_of(model(data), target);
      accelerator.backward(loss);
      if (options.clip) {
        if (const auto norm = options.clip(net)) norms.push_back(*norm);
      }
      prepared.step();
      prepared.zero_grad();
      losses.push_back(loss.template item<double>());
    }
  }
  say_all(accelerator, name + ".losses", losses);
  if (options.clip && (!norms.empty() || name.starts_with("clip_value"))) {
    say_all(accelerator, name + ".norms", norms);
  }
  say(&accelerator, name + ".weights", weights(net));
}

torch::optim::SGD sgd(Net& net, double rate = 0.1) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(rate));
}

void optimizers() {
  namespace optim = torch::optim;
  const auto run = [](const std::string& name, auto make) {
    Accelerator accelerator;
    Net net;
    train(accelerator, "optimizer." + name, net, make(net->parameters()), {.epochs = 2});
  };
  run("SGD", [](auto all) { return optim::SGD(all, optim::SGDOptions(0.02).momentum(0.9)); });
  run("Adam", [](auto all) { return optim::Adam(all, optim::AdamOptions(0.02)); });
  run("AdamW",
      [](auto all) { return optim::AdamW(all, optim::AdamWOptions(0.02).weight_decay(0.1)); });
  run("RMSprop", [](auto all) {
    return optim::RMSprop(all, optim::RMSpropOptions(0.02).momentum(0.5).centered(true));
  });
  run("Adagrad", [](auto all) {
    return optim::Adagrad(all, optim::AdagradOptions(0.02).initial_accumulator_value(0.2));
  });
}

void part_of_a_model() {
  Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->first->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, make_loader(12, 2));
  for (auto& [data, target] : loader) {
    accelerator.backward(loss_of(model(data), target));
    optimizer.step();
    optimizer.zero_grad();
  }
  say(&accelerator, "part_of_a_model.weights", weights(net));
}

void two_optimizers() {
  Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->first->parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::Adam adam(net->second->parameters(), torch::optim::AdamOptions(0.05));
  auto [model, first, second, loader] = accelerator.prepare(net, sgd, adam, make_loader(12, 2));
  for (auto& [data, target] : loader) {
    accelerator.backward(loss_of(model(data), target));
    first.step();
    second.step();
    first.zero_grad();
    second.zero_grad();
  }
  say(&accelerator, "two_optimizers.weights", weights(net));
}

void unused_parameters() {
  Accelerator accelerator;
  Net net(/*with_norm=*/false, /*with_unused=*/true);
  train(accelerator, "unused_parameters", net,
        torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.5)));
}

void clipping() {
  const auto run = [](const std::string& name, int64_t steps, const auto& clip) {
    Accelerator accelerator({.gradient_accumulation_steps = steps});
    Net net;
    train(accelerator, name, net, sgd(net),
          {.clip = [&](Net& clipped) { return clip(accelerator, clipped); }});
  };
  const auto norm_of = [](double type) {
    return [type](Accelerator& accelerator, Net& net) {
      return std::optional(accelerator.clip_grad_norm_(net->parameters(), 0.05, type));
    };
  };
  const auto values = [](Accelerator& accelerator, Net& net) {
    accelerator.clip_grad_value_(net->parameters(), 0.01);
    return std::optional<double>();
  };
  for (const int steps : {1, 2}) {
    run(fmt::format("clip_norm.every_micro_batch.{}", steps), steps, norm_of(2));
    run(fmt::format("clip_value.every_micro_batch.{}", steps), steps, values);
  }
  run("clip_norm.maximum", 1, norm_of(std::numeric_limits<double>::infinity()));
  run("clip_norm.one", 1, norm_of(1));
}

void buffers() {
  for (const int steps : {1, 2}) {
    Accelerator accelerator({.gradient_accumulation_steps = steps});
    Net net(/*with_norm=*/true);
    train(accelerator, fmt::format("buffers.{}", steps), net, sgd(net));
    auto model = accelerator.prepare(net);
    net->eval();
    {
      const torch::NoGradGuard no_grad;
      model(formula({3, 4}));
    }
    const auto& norm = accelerator.unwrap_model(model)->norm;
    say_all(accelerator, fmt::format("buffers.{}.after_a_forward", steps), norm->running_mean,
            norm->running_var);
  }
}

/// Rates of the first 20 steps, of each 37th, and the sum of all.
void schedule_of(const std::string& name, const lr::Schedule& schedule, int steps = 1000) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : {0.1, 0.03}) {
    groups.emplace_back(
        std::vector{torch::zeros({1}).requires_grad_()},
        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(rate)));
  }
  torch::optim::AdamW optimizer(groups);
  lr::LRScheduler scheduler(optimizer, schedule);
  Numbers rates;
  double total = 0;
  for (int step = 0; step < steps; ++step) {
    const auto now = scheduler.get_last_lr();
    if (step < 20 || step % 37 == 0) {
      add(rates, now);
      const auto& options = optimizer.param_groups()[0].options();
      add(rates, std::get<0>(static_cast<const torch::optim::AdamWOptions&>(options).betas()));
    }
    total += now[0] + now[1];
    if (std::holds_alternative<lr::ReduceLROnPlateau>(schedule)) {
      scheduler.step(formula({1}, step * 0.01).item<double>() + 1.0 / (step + 1));
    } else if (step + 1 < steps) {
      scheduler.step();
    }
  }
  say(nullptr, "exact.schedule." + name, rates, total);
}

void schedules() {
  const auto d = [](int64_t step) { return static_cast<double>(step); };
  schedule_of("step", lr::StepLR{.step_size = 30, .gamma = 0.7});
  schedule_of("step_1", lr::StepLR{.step_size = 1, .gamma = 0.99});
  schedule_of("multi_step", lr::MultiStepLR{.milestones = {3, 3, 100, 400}, .gamma = 0.5});
  schedule_of("exponential", lr::ExponentialLR{.gamma = 0.997});
  schedule_of("cosine", lr::CosineAnnealingLR{.T_max = 100, .eta_min = 0.001});
  schedule_of("cosine_whole", lr::CosineAnnealingLR{.T_max = 1000});
  schedule_of("linear", lr::LinearLR{.start_factor = 0.1, .total_iters = 200});
  schedule_of("linear_down", lr::LinearLR{.start_factor = 1, .end_factor = 0, .total_iters = 990});
  schedule_of("one_cycle", lr::OneCycleLR{.max_lr = 0.5, .total_steps = 1000});
  schedule_of("one_cycle_three", lr::OneCycleLR{.max_lr = 0.5,
                                                .total_steps = 1000,
                                                .anneal_strategy = lr::Anneal::linear,
                                                .three_phase = true});
  schedule_of("lambda", lr::LambdaLR{{[d](int64_t step) { return 1.0 / (1 + 0.01 * d(step)); }}});
  schedule_of("lambdas", lr::LambdaLR{{[d](int64_t step) { return std::pow(0.99, d(step)); },
                                       [d](int64_t step) { return 1.0 / (1 + d(step)); }}});
  schedule_of("plateau",
              lr::ReduceLROnPlateau{.factor = 0.5, .patience = 5, .cooldown = 2, .min_lr = 1e-6});
  schedule_of("plateau_max", lr::ReduceLROnPlateau{.mode = lr::Mode::max,
                                                   .patience = 20,
                                                   .threshold = 0.01,
                                                   .threshold_mode = lr::ThresholdMode::abs});
  schedule_of("sequential",
              lr::SequentialLR{{lr::LinearLR{.start_factor = 0.01, .total_iters = 50},
                                lr::CosineAnnealingLR{.T_max = 600}, lr::ExponentialLR{0.99}},
                               {50, 650}});
  schedule_of("sequential_steps",
              lr::SequentialLR{{lr::LambdaLR{{[d](int64_t step) { return 0.1 * (d(step) + 1); }}},
                                lr::StepLR{.step_size = 7}, lr::MultiStepLR{.milestones = {2, 9}}},
                               {9, 30}});
}

void prepared_schedules() {
  const auto run = [](const std::string& name, const AcceleratorOptions& options,
                      const lr::Schedule& schedule) {
    Accelerator accelerator(options);
    Net net;
    auto own = sgd(net);
    lr::LRScheduler rates_of(own, schedule);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, own, rates_of);
    Numbers rates;
    for (int i = 0; i < 8; ++i) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(formula({2, 4})).sum());
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      rates.push_back(scheduler.get_last_lr()[0]);
    }
    say(&accelerator, "prepared_schedule." + name, rates);
  };
  run("step", {.gradient_accumulation_steps = 2}, lr::StepLR{.step_size = 3});
  run("split", {.split_batches = true}, lr::ExponentialLR{.gamma = 0.9});
  run("one_cycle", {}, lr::OneCycleLR{.max_lr = 0.5, .total_steps = 10});
  run("alone", {.gradient_accumulation_steps = 2, .step_scheduler_with_optimizer = false},
      lr::StepLR{.step_size = 2});
}

/// A new folder, the same on all processes.
std::filesystem::path new_folder() {
  std::string name = (std::filesystem::temp_directory_path() / "accelerate_XXXXXX").string();
  const Accelerator accelerator;
  if (accelerator.is_main_process() && mkdtemp(name.data()) == nullptr) std::abort();
  return accelerator.gather_object(std::vector{name})[0];
}

/// Steps that go on from a checkpoint equal those of the run that was not interrupted.
void resume_in_an_epoch() {
  const auto name = new_folder();
  for (const bool resume : {false, true}) {
    Accelerator accelerator;
    Net net;
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.05));
    lr::LRScheduler decay(adam, lr::StepLR{.step_size = 2, .gamma = 0.5});
    auto rows = make_loader(20, 2);
    auto [model, optimizer, scheduler, loader] = accelerator.prepare(net, adam, decay, rows);
    auto active = loader;
    if (resume) {
      accelerator.load_state(name);
      active = accelerator.skip_first_batches(loader, 2);
    }
    Numbers losses;
    for (auto& [data, target] : active) {
      auto loss = loss_of(model(data), target);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      losses.push_back(loss.item<double>());
      if (losses.size() == 2 && !resume) accelerator.save_state(name);
    }
    const std::string of = resume ? "resume.resumed" : "resume.whole";
    say_all(accelerator, of, losses);
    say(&accelerator, of + ".weights", weights(net), scheduler.get_last_lr());
    accelerator.wait_for_everyone();
    if (resume && accelerator.is_main_process()) std::filesystem::remove_all(name);
  }
}

void exchange() {
  Accelerator accelerator;
  const int rank = accelerator.process_index(), size = accelerator.num_processes();
  const auto scalar = accelerator.gather(torch::scalar_tensor(static_cast<double>(rank)));
  say(&accelerator, "gather.scalar", static_cast<double>(scalar.dim()), scalar);
  const auto pair = accelerator.gather(
      std::pair(torch::full({2}, rank),
                std::map<std::string, torch::Tensor>{{"a", torch::full({1, 2}, rank + 0.5)}}));
  say(&accelerator, "gather.nested", pair.first, pair.second.at("a"));
  say(&accelerator, "gather.objects",
      accelerator.gather_object(Numbers{double(rank), double(rank + 10)}));
  for (const std::string reduction : {"sum", "mean", "none", "max"}) {
    say(&accelerator, "reduce." + reduction,
        accelerator.reduce(torch::tensor({1.5, 2.0 + rank}), reduction));
  }
  if (size > 1) {
    say(&accelerator, "reduce.mean_of_integers",
        accelerator.reduce(torch::tensor({1, 2 + rank}), "mean"));
  }
  say(&accelerator, "reduce.scale", accelerator.reduce(torch::tensor({1.5, 2.0})));
  const auto padded =
      accelerator.pad_across_processes(torch::full({rank + 1, 2}, static_cast<float>(rank)), 0, -1);
  say(&accelerator, "pad", padded.sizes(), padded);
  const auto same =
      accelerator.pad_across_processes(torch::full({2}, static_cast<float>(rank)), /*dim=*/1);
  say(&accelerator, "pad.missing_dimension", same.sizes(), same);
  say_all(accelerator, "split",
          accelerator.split_between_processes(Numbers{0, 1, 2, 3, 4, 5, 6}, true));
  say(&accelerator, "size", static_cast<double>(size));
}

void who_runs() {
  Accelerator accelerator;
  if (accelerator.num_processes() == 1) return;
  Numbers ran(5, 0);
  const auto mark = [&](size_t i) { return [&ran, i](double value) { ran[i] = value; }; };
  accelerator.on_main_process(mark(0))(1);
  accelerator.on_local_main_process(mark(1))(2);
  accelerator.on_last_process(mark(2))(3);
  accelerator.on_process(mark(3), /*process_index=*/1)(4);
  accelerator.on_local_process(mark(4), /*local_process_index=*/1)(5);
  say_all(accelerator, "who_runs", ran);
}

void who_is_first() {
  Accelerator accelerator;
  if (accelerator.num_processes() == 1) return;
  const auto folder = new_folder();
  const auto run = [&](const std::string& name, auto first) {
    double seen = 0;
    (accelerator.*first)([&] {
      if (accelerator.is_main_process()) usleep(300'000);
      seen = std::filesystem::exists(folder / name);
      std::ofstream(folder / name) << "here";
    });
    accelerator.wait_for_everyone();
    say_all(accelerator, name, seen);
  };
  run("main_process_first", &Accelerator::main_process_first);
  run("local_main_process_first", &Accelerator::local_main_process_first);
  accelerator.save(formula({3}, accelerator.process_index()), folder / "saved");
  accelerator.wait_for_everyone();
  torch::Tensor saved;
  torch::load(saved, (folder / "saved").string());
  say_all(accelerator, "saved", saved);
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
}

void lengths() {
  const std::vector<std::pair<std::string, AcceleratorOptions>> kinds{
      {"plain", {}},
      {"uneven", {.even_batches = false}},
      {"split", {.split_batches = true}},
      {"dispatch", {.dispatch_batches = true}}};
  for (const auto& [rows, batch] :
       std::vector<std::pair<int64_t, int64_t>>{{20, 3}, {24, 4}, {7, 2}, {1, 4}}) {
    for (const bool drop_last : {false, true}) {
      for (const auto& [name, options] : kinds) {
        Accelerator accelerator(options);
        auto loader =
            accelerator.prepare(make_loader(rows, name == "split" ? 6 : batch, drop_last));
        say_all(accelerator, fmt::format("length.{}.{}.{}.{}", name, rows, batch, int(drop_last)),
                double(loader.size()), double(loader.num_rows()));
      }
    }
  }
}

void leave_and_come_back() {
  for (const size_t workers : {0, 2}) {
    Accelerator accelerator;
    auto loader = accelerator.prepare(make_loader(30, 2, /*drop_last=*/false, workers));
    for ([[maybe_unused]] auto& batch : loader) break;
    Numbers seen;
    for (auto& batch : loader) seen.push_back(batch.data.sum().item<double>());
    if (workers == 2) say_all(accelerator, "loader_left", seen);
  }
}

void second_accelerator() {
  Accelerator first, second;
  Net net;
  train(second, "second_accelerator", net, sgd(net));
  say(&first, "second_accelerator.size", static_cast<double>(second.num_processes()));
}

void steps_set_later() {
  Accelerator accelerator;
  const auto before = accelerator.gradient_accumulation_steps();
  say(&accelerator, "steps_set_later.before", static_cast<double>(before));
  accelerator.set_gradient_accumulation_steps(3);
  Net net, other;
  train(accelerator, "steps_set_later", net, sgd(net), {.rows = 24});
  accelerator.free_memory();
  train(accelerator, "after_free_memory", other, sgd(other));
}

template <typename Optimizer>
void closure_of(const std::string& name, Net& net, Optimizer own) {
  Accelerator accelerator;
  auto [model, optimizer] = accelerator.prepare(net, own);
  const auto data = formula({4, 4}, 3), target = formula({4, 2}, 4);
  for (int i = 0; i < 3; ++i) {
    optimizer.step([&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      auto loss = loss_of(model(data), target);
      accelerator.backward(loss);
      return loss;
    });
    optimizer.zero_grad();
  }
  say(&accelerator, "closure." + name, weights(net));
}

void closures() {
  Net one, other;
  closure_of("SGD", one, sgd(one));
  closure_of("LBFGS", other,
             torch::optim::LBFGS(other->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4)));
}

void local_sgd() {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Net net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.05));
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, make_loader(36, 2));
  for (int epoch = 0; epoch < 2; ++epoch) {
    tessera::LocalSGD local(accelerator, model, /*local_sgd_steps=*/3);
    for (auto& [data, target] : loader) {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of(model(data), target));
      optimizer.step();
      optimizer.zero_grad();
      local.step();
    }
  }
  say_all(accelerator, "local_sgd.weights", weights(net));
}

void uneven_inputs() {
  Accelerator accelerator({.even_batches = false});
  Net net;
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd(net), make_loader(22, 2));
  {
    const auto scope = accelerator.join_uneven_inputs(model);
    for (auto& [data, target] : loader) {
      accelerator.backward(loss_of(model(data), target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  say_all(accelerator, "uneven_inputs.weights", weights(net));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: accelerate_cases FILE\n");
    return 2;
  }
  for (const auto& run : {optimizers, part_of_a_model, two_optimizers, unused_parameters, clipping,
                          buffers, prepared_schedules, resume_in_an_epoch, exchange, who_runs,
                          who_is_first, lengths, leave_and_come_back, second_accelerator,
                          steps_set_later, closures, local_sgd, uneven_inputs}) {
    run();
  }
  const Accelerator accelerator;
  if (accelerator.num_processes() == 1) schedules();
  return write_lines(accelerator, argv[1]);
}
