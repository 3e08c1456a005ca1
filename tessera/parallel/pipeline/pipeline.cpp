#include "tessera/parallel/pipeline/pipeline.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "tessera/schedule/check.h"

namespace tessera::parallel {
namespace {

using schedule::Action;
using schedule::Kind;
using torch::Tensor;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

schedule::Schedule checked(schedule::Schedule schedule) {
  schedule::check(schedule);
  return schedule;
}

/// The forwards of each rank, stage by stage, so that whatever a rank waits for comes from a stage
/// before its own.
std::vector<Messages::Actions> forwards(const schedule::Schedule& schedule, int num_micro_batches) {
  std::vector<Messages::Actions> ranks(schedule.ranks.size());
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    auto& actions = ranks[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(stage)])];
    for (int i = 0; i < num_micro_batches; ++i) actions.push_back({Kind::forward, stage, i});
  }
  return ranks;
}

/// Runs `body`. Whatever it throws ends the pipeline on all ranks; that a peer was lost is told
/// with what was being done.
template <typename Body>
void on_behalf_of(const Action& action, Messages& messages, const Body& body) {
  try {
    body();
  } catch (const c10::DistError& error) {
    messages.abort();
    throw c10::DistError(describe(action) + ": " + error.what_without_backtrace(), nullptr);
  } catch (...) {
    messages.abort();
    throw;
  }
}

}  // namespace

Pipeline::Pipeline(schedule::Schedule schedule, const mesh::DeviceMesh& mesh)
    : schedule_(checked(std::move(schedule))),
      rank_(mesh.axis("pp").rank()),
      messages_(mesh, schedule_.ranks, schedule_.rank_of_stage),
      plan_(messages_.plan(schedule_.ranks)) {
  TORCH_CHECK_VALUE(schedule_.num_ranks() == mesh.axis("pp").size(), schedule_.name,
                    ": expected a schedule for ", mesh.axis("pp").size(), " ranks of pp, got ",
                    schedule_.num_ranks());
  for (const auto& action : schedule_.ranks[static_cast<size_t>(rank_)]) {
    if (action.kind != Kind::forward) last_[action.stage] = action;
    if (action.kind == Kind::backward_weight) {
      split_.emplace(action.stage, action.micro_batch);
      last_.clear();
    }
  }
}

bool Pipeline::completes_gradients(const Action& action) const {
  const auto last = last_.find(action.stage);
  return action.kind == Kind::backward && last != last_.end() && last->second == action;
}

/// Waits for what an action needs: the input of a forward, the gradient of a backward's output.
Tensor Pipeline::needed_by(const Action& action) {
  if (action.kind == Kind::backward_weight) return {};
  if (action.kind == Kind::forward) {
    if (action.stage == 0) return {};
    return messages_.take({Message::Kind::output, action.stage, action.micro_batch});
  }
  if (action.stage + 1 == schedule_.num_stages) return {};  // of a loss: 1
  return messages_.take({Message::Kind::gradient, action.stage, action.micro_batch});
}

/// The output of a forward, which goes on to the next stage.
Tensor Pipeline::run_forward(const Action& action, Tensor input, const Forward& forward) {
  auto output = forward(action.stage, action.micro_batch, std::move(input));
  if (action.stage + 1 < schedule_.num_stages) {
    messages_.send({Message::Kind::output, action.stage + 1, action.micro_batch}, output.detach());
  }
  return output;
}

void Pipeline::run_backward(const Action& action, Tensor gradient) {
  const Key key(action.stage, action.micro_batch);
  auto& call = in_flight_.at(key);
  if (!gradient.defined()) gradient = at::ones({}, call.output_options);
  if (call.output.is_valid()) {
    torch::autograd::Engine::get_default_engine().execute(
        {call.output}, {gradient}, /*keep_graph=*/false, /*create_graph=*/false,
        /*accumulate_grad=*/true);
  }
  if (action.stage > 0) {
    auto of_input = call.input.grad();
    if (!of_input.defined()) of_input = at::zeros_like(call.input);
    messages_.send({Message::Kind::gradient, action.stage - 1, action.micro_batch}, of_input);
  }
  if (action.kind == Kind::backward) {
    in_flight_.erase(key);
  } else {  // its weight part needs no more than what was put off
    call.input = Tensor();
    call.output = {};
  }
}

void Pipeline::train_one(const Action& action, const Forward& forward, const Observe& observe) {
  const Key key(action.stage, action.micro_batch);
  auto needed = needed_by(action);
  if (observe) observe(action);
  switch (action.kind) {
    case Kind::forward: {
      auto& call = in_flight_[key];
      peak_in_flight_ = std::max(peak_in_flight_, in_flight_.size());
      if (needed.defined()) call.input = needed.requires_grad_(needed.is_floating_point());
      if (split_.contains(key)) call.deferred = std::make_shared<autograd::DeferredGradients>();
      const autograd::DeferScope scope(call.deferred);
      const auto output = run_forward(action, std::move(needed), forward);
      call.output_options = output.options();
      if (output.requires_grad()) call.output = torch::autograd::impl::gradient_edge(output);
      if (action.stage + 1 == schedule_.num_stages) {
        losses_[static_cast<size_t>(action.micro_batch)] = output.detach();
      }
      return;
    }
    case Kind::backward:
    case Kind::backward_input:
      return run_backward(action, std::move(needed));
    case Kind::backward_weight:
      in_flight_.at(key).deferred->run();
      in_flight_.erase(key);
  }
}

std::vector<Tensor> Pipeline::train(const Forward& forward, const Observe& observe) {
  const auto& actions = schedule_.ranks[static_cast<size_t>(rank_)];
  const auto begin = Clock::now();
  in_flight_.clear();
  peak_in_flight_ = 0;
  losses_.assign(has_last_stage() ? static_cast<size_t>(schedule_.num_micro_batches) : 0, {});
  spans_.assign(actions.size(), {});
  messages_.begin(plan_, /*remember=*/true);
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto started = [&](const Action& action) {
      spans_[i].start = seconds_since(begin);
      if (observe) observe(action);
    };
    on_behalf_of(actions[i], messages_, [&] { train_one(actions[i], forward, started); });
    spans_[i].end = seconds_since(begin);
  }
  on_behalf_of(actions.back(), messages_, [&] { messages_.finish(); });
  return std::move(losses_);
}

std::vector<Tensor> Pipeline::evaluate(const Forward& forward, int num_micro_batches) {
  const torch::NoGradGuard no_grad;
  const auto ranks = forwards(schedule_, num_micro_batches);
  const auto plan = messages_.plan(ranks);
  std::vector<Tensor> outputs;
  messages_.begin(plan, /*remember=*/false);
  for (const auto& action : ranks[static_cast<size_t>(rank_)]) {
    on_behalf_of(action, messages_, [&] {
      auto output = run_forward(action, needed_by(action), forward);
      if (action.stage + 1 == schedule_.num_stages) outputs.push_back(std::move(output));
    });
  }
  messages_.finish();
  return outputs;
}

}  // namespace tessera::parallel
