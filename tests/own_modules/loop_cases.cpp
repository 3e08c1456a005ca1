// What stands around forward and backward: optimizers, accumulation, evaluation, several nets.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"
#include "tests/own_modules/blocks.h"
#include "tests/own_modules/harness.h"

namespace tessera::own_modules {
namespace {

using nn::Linear;
using Parameters = std::vector<torch::Tensor>;

/// Judges samples by one number each.
struct JudgeImpl : Own {
  Linear first = child("first", Linear(3, 6, true));
  Block block = child("block", Block());
  Linear last = child("last", Linear(6, 1, true));
  torch::Tensor forward(torch::Tensor x) { return last(block(first(x).tanh())); }
};

/// A student whose teacher is plain tensors beside it: the mean of its values over time.
struct StudentImpl : MlpImpl {
  std::vector<torch::Tensor> teacher;
  torch::Tensor taught(const torch::Tensor& x) const {
    const auto first = x.matmul(teacher[0].t()) + teacher[1];
    const auto inner = (first.matmul(teacher[2].t()) + teacher[3]).tanh();
    const auto block = first + inner.matmul(teacher[4].t()) + teacher[5];
    return block.matmul(teacher[6].t()) + teacher[7];
  }
  void follow(double share) {
    const torch::NoGradGuard no_grad;
    const auto values = parameters();
    if (teacher.empty()) {
      for (const auto& value : values) teacher.push_back(value.detach().clone());
    }
    for (size_t i = 0; i < values.size(); ++i) teacher[i].mul_(1 - share).add_(values[i], share);
  }
};

struct DropoutNetImpl : MlpImpl {
  nn::Dropout drop = child("drop", nn::Dropout("drop", 0.4));
  torch::Tensor forward(torch::Tensor x) { return last(drop(block(drop(first(x))))); }
};

/// A transition: the state of the next time from that of this one.
struct TransitionImpl : Own {
  Linear in = child("in", Linear(4, 6, true)), recur = child("recur", Linear(6, 6, true));
  Block block = child("block", Block());
  Linear out = child("out", Linear(6, 3, true));
  torch::Tensor forward(torch::Tensor x, torch::Tensor state) {
    return block((in(x) + recur(state)).tanh()).tanh();
  }
};

template <typename Kind, typename Options>
OptimizerMaker maker(Options options) {
  return [options](Parameters parameters) {
    return std::make_unique<Kind>(std::move(parameters), options);
  };
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

torch::Tensor squares(nn::Hooked<MlpImpl>& net, const Rows& rows, int tag = 0) {
  return rows.loss(net(rows.randn({4}, tag)).square());
}

void one_step(Run& run, int tag = 0) {
  auto net = run.net<MlpImpl>();
  run.backward(squares(net, run.rows, tag));
  run.update();
}

std::vector<Case> optimizer_cases() {
  using namespace torch::optim;
  const auto with = [](const std::string& name, OptimizerMaker optimizer) {
    return loop_case<MlpImpl>(name, {.optimizer = std::move(optimizer), .steps = 4},
                              [](Run& run) { one_step(run); });
  };
  return {
      with("sgd", maker<SGD>(SGDOptions(0.05))),
      with("sgd_nesterov_weight_decay",
           maker<SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1))),
      with("sgd_dampening", maker<SGD>(SGDOptions(0.05).momentum(0.8).dampening(0.3))),
      // Not the default eps: a gradient that rounding makes would decide an update.
      with("adam", maker<Adam>(AdamOptions(0.01).eps(1e-3).weight_decay(0.05))),
      with("adamw", maker<AdamW>(AdamWOptions(0.01).eps(1e-3).weight_decay(0.1))),
      with("amsgrad", maker<Adam>(AdamOptions(0.01).eps(1e-3).amsgrad(true))),
      with("adagrad", maker<Adagrad>(AdagradOptions(0.02).eps(1e-3).lr_decay(0.1))),
      with("rmsprop_centered",
           maker<RMSprop>(RMSpropOptions(0.01).eps(1e-2).centered(true).momentum(0.5))),
  };
}

std::vector<Case> accumulation_cases() {
  return {
      net_case<MlpImpl>("two_micro_batches", {.rows = 12, .micro_batches = 2},
                        [](auto& net, const Rows& rows) { return squares(net, rows); }),
      net_case<MlpImpl>("four_micro_batches_some_empty", {.rows = 12, .micro_batches = 4},
                        [](auto& net, const Rows& rows) { return squares(net, rows); }),
      loop_case<MlpImpl>("two_forwards_two_backwards_each_finished", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto one = squares(net, run.rows), two = squares(net, run.rows, 1);
                           run.set_is_last_backward(false);
                           run.backward(one);
                           run.set_is_last_backward(true);
                           run.backward(two);
                           run.update();
                         }),
      loop_case<MlpImpl>("the_second_forward_is_first_in_backward", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto one = squares(net, run.rows), two = squares(net, run.rows, 1);
                           run.set_requires_gradient_sync(false);
                           run.backward(two);
                           run.set_requires_gradient_sync(true);
                           run.backward(one);
                           run.update();
                         }),
      loop_case<MlpImpl>("two_backwards_one_finish", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           squares(net, run.rows).backward();
                           squares(net, run.rows, 1).backward();
                           run.finish_backward();
                           run.update();
                         }),
      loop_case<MlpImpl>("retain_graph", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto y = net(run.rows.randn({4}));
                           run.set_is_last_backward(false);
                           run.rows.loss(y.square()).backward({}, /*retain_graph=*/true);
                           run.finish_backward();
                           run.set_is_last_backward(true);
                           run.backward(run.rows.loss(y.sin()));
                           run.update();
                         }),
      loop_case<MlpImpl>("retain_graph_reduced_once", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto y = net(run.rows.randn({4}));
                           run.set_requires_gradient_sync(false);
                           run.rows.loss(y.square()).backward({}, /*retain_graph=*/true);
                           run.finish_backward();
                           run.set_requires_gradient_sync(true);
                           run.backward(run.rows.loss(y.sin()));
                           run.update();
                         }),
      loop_case<MlpImpl>("gradients_given_to_backward", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto y = net(run.rows.randn({4}));
                           y.backward(run.rows.randn({3}, 1) / static_cast<double>(run.rows.total));
                           run.finish_backward();
                           run.update();
                         }),
      loop_case<MlpImpl>("a_step_is_dropped", {.steps = 4},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.backward(squares(net, run.rows));
                           run.rows.step == 1 ? run.forget() : run.update();
                         }),
      loop_case<MlpImpl>("steps_without_forget_between", {.steps = 2},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           for (int part = 0; part < 3; ++part) {
                             run.set_requires_gradient_sync(part == 2);
                             run.backward(squares(net, run.rows, part));
                           }
                           run.update();
                         }),
  };
}

std::vector<Case> evaluation_cases() {
  return {
      loop_case<MlpImpl>("evaluation_between_steps", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           one_step(run);
                           net->eval();
                           const torch::NoGradGuard no_grad;
                           run.note(squares(net, run.rows, 1));
                           run.note(squares(net, run.rows, 2));
                           net->train();
                         }),
      loop_case<MlpImpl>("evaluation_between_forward_and_backward", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           const auto loss = squares(net, run.rows);
                           {
                             const torch::NoGradGuard no_grad;
                             run.note(squares(net, run.rows, 1));
                           }
                           run.backward(loss);
                           run.update();
                         }),
      loop_case<MlpImpl>("evaluation_between_micro_batches", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.set_requires_gradient_sync(false);
                           run.backward(squares(net, run.rows));
                           {
                             const torch::NoGradGuard no_grad;
                             run.note(squares(net, run.rows, 1));
                           }
                           run.set_requires_gradient_sync(true);
                           run.backward(squares(net, run.rows, 2));
                           run.update();
                         }),
      loop_case<MlpImpl>("evaluation_after_backward", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.backward(squares(net, run.rows));
                           {
                             const torch::NoGradGuard no_grad;
                             run.note(squares(net, run.rows, 1));
                           }
                           run.update();
                         }),
      loop_case<MlpImpl>("a_forward_that_is_never_backward", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.note(squares(net, run.rows, 1));  // under grad mode, and dropped
                           run.backward(squares(net, run.rows));
                           run.note(squares(net, run.rows, 2));
                           run.update();
                         }),
      loop_case<MlpImpl>("evaluation_unsharded", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.unshard();
                           {
                             const torch::NoGradGuard no_grad;
                             for (int tag = 1; tag < 4; ++tag)
                               run.note(squares(net, run.rows, tag));
                             run.note(net->block->up->weight.square().sum() * run.rows.share());
                           }
                           run.reshard();
                           one_step(run);
                         }),
      loop_case<MlpImpl>("a_step_while_unsharded", {},
                         [](Run& run) {
                           run.unshard();
                           one_step(run);
                         }),
      loop_case<DropoutNetImpl>("dropout", {},
                                [](Run& run) {
                                  auto net = run.net<DropoutNetImpl>();
                                  run.for_micro_batches([&](const Rows& rows) {
                                    const nn::RandomScope scope(nn::RandomContext{
                                        .seed = 7, .step = rows.step, .first_row = rows.begin});
                                    run.backward(rows.loss(net(rows.randn({4})).square()));
                                  });
                                  run.update();
                                }),
  };
}

std::vector<Case> scaling_cases() {
  return {
      loop_case<MlpImpl>("loss_scaled_by_hand", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           (squares(net, run.rows) * 1024).backward();
                           run.finish_backward();
                           for (auto& group : run.optimizer().param_groups()) {
                             for (auto& parameter : group.params())
                               parameter.mutable_grad().div_(1024);
                           }
                           run.update();
                         }),
      loop_case<MlpImpl>("gradients_clipped_by_value", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.backward(squares(net, run.rows) * 30);
                           for (auto& group : run.optimizer().param_groups()) {
                             for (auto& parameter : group.params()) {
                               parameter.mutable_grad().clamp_(-0.5, 0.5);
                             }
                           }
                           run.update();
                         }),
      loop_case<MlpImpl>("gradients_clipped_by_norm", {},
                         [](Run& run) {
                           auto net = run.net<MlpImpl>();
                           run.backward(squares(net, run.rows) * 30);
                           double norm = 0;
                           if (run.sharded()) {
                             norm = run.model().gradient_norm().norm;
                           } else {
                             for (const auto& parameter : net->parameters()) {
                               norm += parameter.grad().square().sum().item<double>();
                             }
                             norm = std::sqrt(norm);
                           }
                           for (auto& group : run.optimizer().param_groups()) {
                             for (auto& parameter : group.params()) {
                               parameter.mutable_grad().mul_(std::min(1.0, 2 / norm));
                             }
                           }
                           run.update();
                         }),
      loop_case<MlpImpl>("another_learning_rate_in_every_step", {.steps = 4},
                         [](Run& run) {
                           set_learning_rate(run.optimizer(), 0.02 * (1 + run.rows.step));
                           one_step(run);
                         }),
      loop_case<MlpImpl>("optimizer_zero_grad_first", {},
                         [](Run& run) {
                           run.optimizer().zero_grad();
                           run.net<MlpImpl>()->zero_grad();
                           one_step(run);
                         }),
      loop_case<MlpImpl>("zero_grad_to_zeros", {},
                         [](Run& run) {
                           run.optimizer().zero_grad(/*set_to_none=*/false);
                           run.net<MlpImpl>()->zero_grad(/*set_to_none=*/false);
                           one_step(run);
                           run.optimizer().zero_grad(/*set_to_none=*/false);
                         }),
      loop_case<MlpImpl>("values_scaled_between_steps", {},
                         [](Run& run) {
                           one_step(run);
                           const torch::NoGradGuard no_grad;
                           for (auto& group : run.optimizer().param_groups()) {
                             for (auto& parameter : group.params()) parameter.mul_(0.9);
                           }
                           if (run.sharded()) run.model().values_changed();
                         }),
  };
}

std::vector<Case> time_cases() {
  const auto unrolled = [](bool detached) {
    return [detached](Run& run) {
      auto net = run.net<TransitionImpl>();
      auto state = torch::zeros({run.rows.size(), 6});
      auto loss = torch::zeros({});
      for (int time = 0; time < 5; ++time) {
        state = net(run.rows.randn({4}, time), detached ? state.detach() : state);
        loss = loss + run.rows.loss(net->out(state).square());
      }
      run.backward(loss);
      run.update();
    };
  };
  return {
      loop_case<TransitionImpl>("recurrent_over_five_times", {}, unrolled(false)),
      loop_case<TransitionImpl>("recurrent_with_detached_state", {}, unrolled(true)),
      loop_case<TransitionImpl>("truncated_backward_through_time", {.half = false},
                                [](Run& run) {
                                  auto net = run.net<TransitionImpl>();
                                  auto state = torch::zeros({run.rows.size(), 6});
                                  for (int chunk = 0; chunk < 3; ++chunk) {
                                    auto loss = torch::zeros({});
                                    for (int time = 0; time < 2; ++time) {
                                      state = net(run.rows.randn({4}, 2 * chunk + time), state);
                                      loss = loss + run.rows.loss(net->out(state).square());
                                    }
                                    run.backward(loss);
                                    run.update();
                                    state = state.detach();
                                  }
                                }),
      loop_case<TransitionImpl>("as_many_times_as_the_step_says", {},
                                [](Run& run) {
                                  auto net = run.net<TransitionImpl>();
                                  auto state = torch::zeros({run.rows.size(), 6});
                                  for (int time = 0; time <= 2 * run.rows.step; ++time) {
                                    state = net(run.rows.randn({4}, time), state);
                                  }
                                  run.backward(run.rows.loss(net->out(state).square()));
                                  run.update();
                                }),
  };
}

std::vector<Case> several_nets() {
  return {
      loop_case<MlpImpl, JudgeImpl>("discriminator_reduced_and_dropped", {},
                                    [](Run& run) {
                                      auto generator = run.net<MlpImpl>();
                                      auto judge = run.net<JudgeImpl>(1);
                                      const auto made = generator(run.rows.randn({4}));
                                      run.backward(run.rows.loss(at::softplus(-judge(made))), 0);
                                      run.finish_backward(1);
                                      run.update(0);
                                      run.forget(1);
                                      run.backward(
                                          run.rows.loss(at::softplus(judge(made.detach()))), 1);
                                      run.update(1);
                                    }),
      loop_case<MlpImpl, JudgeImpl>(
          "generator_and_discriminator", {},
          [](Run& run) {
            auto generator = run.net<MlpImpl>();
            auto judge = run.net<JudgeImpl>(1);
            const auto made = generator(run.rows.randn({4}));
            run.backward(run.rows.loss(at::softplus(judge(made.detach())) +
                                       at::softplus(-judge(run.rows.randn({3}, 1)))),
                         1);
            run.update(1);
            // The judge's own gradients of this one are dropped.
            run.set_requires_gradient_sync(false, 1);
            run.backward(run.rows.loss(at::softplus(-judge(made))), 0);
            run.update(0);
            run.forget(1);
            run.set_requires_gradient_sync(true, 1);
          }),
      loop_case<MlpImpl, JudgeImpl>(
          "one_loss_through_two_models", {},
          [](Run& run) {
            auto first = run.net<MlpImpl>();
            auto second = run.net<JudgeImpl>(1);
            run.backward(run.rows.loss(second(first(run.rows.randn({4})).tanh()).square()));
            run.finish_backward(1);
            run.update(0);
            run.update(1);
          }),
      loop_case<MlpImpl, JudgeImpl>("two_models_in_turns", {.steps = 4},
                                    [](Run& run) {
                                      const auto x = run.rows.randn({4});
                                      if (run.rows.step % 2 == 0) {
                                        auto net = run.net<MlpImpl>();
                                        run.backward(run.rows.loss(net(x).square()), 0);
                                        run.update(0);
                                      } else {
                                        auto net = run.net<JudgeImpl>(1);
                                        run.backward(run.rows.loss(net(x.narrow(1, 0, 3)).square()),
                                                     1);
                                        run.update(1);
                                      }
                                    }),
      loop_case<StudentImpl>("a_teacher_follows_its_student", {},
                             [](Run& run) {
                               auto net = run.net<StudentImpl>();
                               if (net->teacher.empty()) {
                                 run.unshard();
                                 net->follow(0);
                                 run.reshard();
                               }
                               const auto x = run.rows.randn({4});
                               const auto y = net(x);
                               const auto target = net->taught(x.to(net->teacher[0].dtype()));
                               run.backward(
                                   run.rows.loss((y - target + run.rows.randn({3}, 1)).square()));
                               run.update();
                               run.unshard();
                               net->follow(0.3);
                               run.reshard();
                             }),
      loop_case<StudentImpl>("saved_and_loaded_into_a_plain_net", {},
                             [](Run& run) {
                               one_step(run);
                               auto net = run.net<StudentImpl>();
                               MlpImpl plain;
                               run.unshard();
                               {
                                 const torch::NoGradGuard no_grad;
                                 const auto values = net->parameters();
                                 auto own = plain.parameters();
                                 for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values[i]);
                               }
                               run.reshard();
                               run.note(run.rows.loss(plain.forward(run.rows.randn({4})).square()));
                             }),
  };
}

}  // namespace

std::vector<Case> loop_cases() {
  std::vector<Case> cases;
  for (const auto& theme : {optimizer_cases(), accumulation_cases(), evaluation_cases(),
                            scaling_cases(), time_cases(), several_nets()}) {
    cases.insert(cases.end(), theme.begin(), theme.end());
  }
  return cases;
}

}  // namespace tessera::own_modules
