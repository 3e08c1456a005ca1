#include "tessera/train/self_test.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/units.h"
#include "tessera/data/batch.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/optimizer.h"
#include "tessera/parallel/data/data_parallel.h"
#include "tessera/train/join_run.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
using comm::ReduceOp;
using parallel::Placement;

/// Prints on rank 0; remembers whether anything was wrong on any rank.
class Report {
 public:
  explicit Report(const mesh::DeviceMesh& mesh) : mesh_(mesh) {}

  void say(const std::string& line) const {
    if (mesh_.rank() == 0) fmt::print("{}\n", line);
  }

  /// `wrong`: what this rank found, "" if nothing.
  void check(const std::string& what, const std::string& wrong, const std::string& remark = "") {
    std::string all;
    const auto found = mesh_.world().all_gather_bytes(wrong);
    for (size_t rank = 0; rank < found.size(); ++rank) {
      if (!found[rank].empty()) all += fmt::format(" rank {}: {};", rank, found[rank]);
    }
    failed_ = failed_ || !all.empty();
    say(fmt::format("  {:<44} {}{}", what, all.empty() ? "ok" : "WRONG:" + all,
                    remark.empty() ? "" : "  " + remark));
  }

  bool failed() const { return failed_; }

 private:
  const mesh::DeviceMesh& mesh_;
  bool failed_ = false;
};

// ---- collectives -------------------------------------------------------------------------------

constexpr int64_t kElements = 1 << 18;

/// Small whole numbers, exact in every dtype, different on each rank.
torch::Tensor numbers(int rank, int64_t count, const torch::TensorOptions& options) {
  return (at::arange(count, torch::kInt64).remainder(7) + rank).to(options);
}

std::string difference(const torch::Tensor& found, const torch::Tensor& expected) {
  const auto worst = (found.to(torch::kFloat64) - expected.to(torch::kFloat64)).abs().max();
  const auto value = worst.cpu().item<double>();
  return value <= 1e-2 ? "" : fmt::format("off by {}", value);
}

torch::Tensor reduced(ReduceOp op, int ranks, int64_t count, const torch::TensorOptions& options) {
  const auto each = options.dtype(torch::kFloat64);
  auto result = numbers(0, count, each);
  if (op == ReduceOp::min) return result;
  if (op == ReduceOp::max) return numbers(ranks - 1, count, each);
  for (int rank = 1; rank < ranks; ++rank) result += numbers(rank, count, each);
  return op == ReduceOp::avg ? result / ranks : result;
}

void check_reductions(const mesh::DeviceMesh& mesh, Report& report) {
  const auto& axis = mesh.world();
  const auto n = axis.size();
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    const auto options = torch::device(mesh.device()).dtype(dtype);
    std::string wrong;
    const auto note = [&](const char* operation, ReduceOp op, const std::string& found) {
      if (!found.empty() && wrong.empty()) {
        wrong = fmt::format("{} {} {}", operation, comm::name_of(op), found);
      }
    };
    for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
      const auto expected = reduced(op, n, n * kElements / n, options);
      const auto mine = numbers(axis.rank(), n * (kElements / n), options);
      auto whole = mine.clone();
      axis.all_reduce(whole, op).wait();
      note("all_reduce", op, difference(whole, expected.slice(0, 0, whole.size(0))));
      auto part = at::empty({kElements / n}, options);
      axis.reduce_scatter(part, mine, op).wait();
      const auto begin = axis.rank() * (kElements / n);
      note("reduce_scatter", op, difference(part, expected.slice(0, begin, begin + kElements / n)));
    }
    report.check(fmt::format("sum, avg, max, min in {}", c10::toString(dtype)), wrong);
  }
}

void check_moves(const mesh::DeviceMesh& mesh, Report& report) {
  const auto& axis = mesh.world();
  const int64_t n = axis.size(), each = kElements / n;
  const auto options = torch::device(mesh.device()).dtype(torch::kFloat32);
  const auto mine = numbers(axis.rank(), each, options);
  auto all = at::empty({n * each}, options);
  axis.all_gather(all, mine).wait();
  std::string wrong;
  for (int rank = 0; rank < n; ++rank) {
    wrong += difference(all.slice(0, rank * each, (rank + 1) * each), numbers(rank, each, options));
  }
  report.check("all_gather", wrong);
  auto given = numbers(axis.rank(), each, options);
  axis.broadcast(given, static_cast<int>(n) - 1).wait();
  report.check("broadcast", difference(given, numbers(static_cast<int>(n) - 1, each, options)));
  auto exchanged = at::empty({n * each}, options);
  axis.all_to_all_single(exchanged, numbers(axis.rank(), n * each, options)).wait();
  wrong.clear();
  for (int rank = 0; rank < n; ++rank) {
    const auto begin = axis.rank() * each;
    wrong += difference(exchanged.slice(0, rank * each, (rank + 1) * each),
                        numbers(rank, n * each, options).slice(0, begin, begin + each));
  }
  report.check("all_to_all", wrong);
}

void measure(const mesh::DeviceMesh& mesh, Report& report) {
  if (mesh.size() == 1) return;
  auto buffer = at::full({16 << 20}, 1.0, torch::device(mesh.device()).dtype(torch::kFloat32));
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    mesh.world().barrier();
    const auto start = Clock::now();
    mesh.world().all_reduce(buffer).wait();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(buffer.nbytes()) / seconds);
  }
  report.say(fmt::format("  all_reduce of {}: {}/s at best", format_bytes(buffer.nbytes()),
                         format_bytes(static_cast<int64_t>(best))));
}

// ---- training ----------------------------------------------------------------------------------

/// Losses of two steps, and the first gradient's norm.
struct Outcome {
  double first_loss = 0, grad_norm = 0, second_loss = 0;
};

Outcome train_twice(const mesh::DeviceMesh& mesh, Placement placement, int64_t rows) {
  const auto shape = models::model_preset("micro");
  const auto model = models::make_language_model(shape);
  models::initialise(*model, /*seed=*/1, /*std=*/0.05);
  model->to(mesh.device());
  parallel::DataParallelOptions options{.gradient_divide_factor = 1};
  options.unit.placement = placement;
  auto data = parallel::parallelise(
      *model,
      parallel::make_units(*model,
                           {.kind = parallel::UnitRuleKind::given, .modules = model->blocks()}),
      parallel::DataAxes::of(mesh), options);
  std::vector<optim::Slice> slices;
  for (const auto& slice : data.slices()) {
    slices.push_back({.parameter = slice.parameter, .gradient = slice.gradient});
  }
  optim::Optimizer optimizer(std::move(slices), {});

  const auto& axis = mesh.world();
  const auto own = data::rows_of(axis.rank(), axis.size(), rows);
  const auto tokens = (at::arange(rows * (shape.max_seq_len + 1), torch::kInt64) * 7919)
                          .remainder(shape.vocab_size);
  const auto table = tokens.reshape({rows, -1}).slice(0, own.begin, own.end).to(mesh.device());
  const auto inputs = table.slice(1, 0, shape.max_seq_len), targets = table.slice(1, 1);
  Outcome outcome;
  for (double* loss_of_step : {&outcome.first_loss, &outcome.second_loss}) {
    const auto loss = model->loss(inputs.contiguous(), targets.contiguous(),
                                  1.0 / static_cast<double>(rows * shape.max_seq_len));
    loss.backward();
    data.finish_backward();
    if (loss_of_step == &outcome.first_loss) outcome.grad_norm = data.gradient_norm().norm;
    optimizer.step(1e-2);
    data.finish_step();
    auto sum = loss.detach().to(torch::kFloat64).reshape({1});
    axis.all_reduce(sum).wait();
    *loss_of_step = sum.item<double>();
  }
  return outcome;
}

std::string difference(const Outcome& found, const Outcome& expected) {
  const auto off = [](double a, double b) { return std::abs(a - b) > 1e-4 * std::abs(b); };
  if (off(found.first_loss, expected.first_loss)) {
    return fmt::format("loss {}, alone {}", found.first_loss, expected.first_loss);
  }
  if (off(found.grad_norm, expected.grad_norm)) {
    return fmt::format("gradient norm {}, alone {}", found.grad_norm, expected.grad_norm);
  }
  if (off(found.second_loss, expected.second_loss)) {
    return fmt::format("loss after a step {}, alone {}", found.second_loss, expected.second_loss);
  }
  return "";
}

void check_training(const mesh::DeviceMesh& mesh, Report& report) {
  const int64_t rows = 2 * mesh.size();
  const mesh::DeviceMesh alone({}, {}, {}, mesh.device());
  const auto expected = train_twice(alone, Placement::replicate, rows);
  const std::pair<const char*, Placement> kPlacements[] = {
      {"replicate (DDP)", Placement::replicate},
      {"shard_optimizer (ZeRO-1)", Placement::shard_optimizer},
      {"shard_gradients (ZeRO-2)", Placement::shard_gradients},
      {"full_shard (ZeRO-3, FSDP)", Placement::full_shard}};
  for (const auto& [name, placement] : kPlacements) {
    const auto found = train_twice(mesh, placement, rows);
    report.check(name, difference(found, expected),
                 fmt::format("loss {:.6f} then {:.6f}", found.first_loss, found.second_loss));
  }
}

}  // namespace

int self_test(const config::ParallelSection& parallel, const launch::RankEnvironment& environment) {
  set_threads(parallel, environment);
  auto section = parallel;
  section.placement = parallel::Placement::full_shard;
  const auto mesh = make_mesh(section, environment);
  Report report(mesh);
  report.say(fmt::format("{} rank(s), {} on this machine; rank 0 computes on {}, {} thread(s) each",
                         mesh.size(), environment.local_world_size, mesh.device().str(),
                         at::get_num_threads()));
  report.say(
      fmt::format("collectives{}", mesh.size() == 1 ? " (of one rank: nothing is sent)" : ""));
  check_reductions(mesh, report);
  check_moves(mesh, report);
  measure(mesh, report);
  report.say("two training steps on all ranks, beside one rank alone");
  check_training(mesh, report);
  report.say(report.failed() ? "something is WRONG: do not train on this set-up"
                             : "all is well: this set-up trains right");
  return report.failed() ? 1 : 0;
}

}  // namespace tessera::train
