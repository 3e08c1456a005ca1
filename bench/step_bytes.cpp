#include "bench/step_bytes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/models/shape.h"
#include "tessera/predict/activations.h"
#include "tessera/train/assemble.h"
#include "tessera/train/step.h"

namespace tessera::bench {
namespace {

/// Operators with a kernel of their own that move nothing, though no schema says so.
const std::set<std::string> kFree = {"aten::empty", "aten::empty_strided", "aten::resize_",
                                     "aten::set_"};
/// Operators in place that do not read what they write.
const std::set<std::string> kOverwrite = {"aten::copy_", "aten::fill_", "aten::zero_"};

int64_t bytes_of(const c10::IValue& value) {
  const auto of = [](const at::Tensor& tensor) -> int64_t {
    // A number that became a tensor is none.
    return tensor.defined() && tensor.dim() > 0 ? static_cast<int64_t>(tensor.nbytes()) : 0;
  };
  if (value.isTensor()) return of(value.toTensor());
  int64_t sum = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) sum += of(tensor);
  }
  return sum;
}

/// Does it return its argument as it is, or a view of it?
bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

/// What LibTorch's operator reads, by its schema: not the results that it is given to write.
int64_t read_bytes(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  const auto inputs = function.inputs();
  int64_t sum = 0;
  for (size_t i = 0; i < inputs.size() && i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_written && (argument.is_out() || kOverwrite.contains(function.name()))) continue;
    sum += bytes_of(inputs[i]);
  }
  return sum;
}

/// Has it a kernel for a kind of device? The others are made of operators that have, but for copies, which choose one
/// themselves.
bool has_kernel(const at::RecordFunction& function) {
  if (std::string_view(function.name()) == "aten::copy_") return true;
  const auto name = function.operator_name();
  const auto found = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  return found && (found->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                   found->hasKernelForDispatchKey(c10::DispatchKey::CUDA));
}

/// One operator under way.
struct UnderWay : at::ObserverContext {
  int64_t bytes = 0;
  bool is_whole = false;        ///< what it calls is its own
  bool counts_results = false;  ///< LibTorch's: they are not among its inputs
};

/// How many of those that are whole this thread is in.
int& depth() {
  static thread_local int operators = 0;
  return operators;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto context = std::make_unique<UnderWay>();
  const std::string name = function.name();
  if (const auto schema = function.operator_schema(); schema && has_kernel(function)) {
    context->is_whole = true;
    context->counts_results = !kFree.contains(name) && !is_view(*schema);
    if (context->counts_results) context->bytes = read_bytes(function, *schema);
  } else if (name.starts_with("tessera::")) {
    context->is_whole = true;
    for (const auto& input : function.inputs()) context->bytes += bytes_of(input);
  }
  if (context->is_whole) ++depth();
  return context;
}

ByteCount*& current() {
  static ByteCount* count = nullptr;
  return count;
}

}  // namespace

ByteCount::ByteCount() {
  current() = this;
  const auto end = [](const at::RecordFunction& function, at::ObserverContext* context) {
    auto& own = *static_cast<UnderWay*>(context);
    if (!own.is_whole || --depth() > 0) return;
    if (own.counts_results) {
      for (const auto& output : function.outputs()) own.bytes += bytes_of(output);
    }
    if (own.counts_results || own.bytes > 0) current()->add(function.name(), own.bytes);
  };
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                                      .needsInputs(true)
                                      .needsOutputs(true)
                                      .scopes({at::RecordScope::FUNCTION}));
}

ByteCount::~ByteCount() {
  at::removeCallback(handle_);
  current() = nullptr;
}

void ByteCount::add(const std::string& name, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& entry = operators_[name];
  ++entry.calls, entry.bytes += bytes;
}

int64_t StepBytes::touched() const {
  int64_t sum = 0;
  for (const auto& [name, entry] : operators) sum += entry.bytes;
  return sum;
}

StepBytes step_bytes(const config::RunConfig& job) {
  const mesh::DeviceMesh mesh;
  auto run = train::assemble(job, mesh);
  train::train_step(run, 0);
  const auto batches = train::micro_batches(run, run.train_loader, 1);
  StepBytes result;
  {
    const ByteCount count;
    train::train_step(run, 1, batches);
    result.operators = count.operators();
  }
  int64_t numbers = 0;
  for (const auto& parameter : run.parameters) {
    if (parameter.trained) numbers += c10::multiply_integers(parameter.shape);
  }
  constexpr int64_t kPassesOfUpdate = 7;  // weights, two moments: read and written; gradients: read
  const auto micro_batches = static_cast<int64_t>(batches.size());
  const int64_t width = predict::compute_bytes(job.precision), wide = sizeof(float);
  result.least = {
      .weights = micro_batches * 2 * models::matrix_weights(run.model->shape()) * width,
      .kept = micro_batches * 2 * predict::kept_activation_bytes(run.config, run.rank_plan().part),
      .gradients = numbers * wide,
      .update = numbers * wide * kPassesOfUpdate};
  return result;
}

std::string table(const StepBytes& bytes) {
  const double mega = 1e6;
  const auto all = static_cast<double>(bytes.touched());
  const auto in_mb = [&](int64_t count) { return static_cast<double>(count) / mega; };
  std::vector<std::pair<std::string, OperatorBytes>> rows;
  OperatorBytes others;
  for (const auto& [name, entry] : bytes.operators) {
    if (static_cast<double>(entry.bytes) >= all / 100) {
      rows.emplace_back(name, entry);
    } else {
      others.calls += entry.calls, others.bytes += entry.bytes;
    }
  }
  std::ranges::sort(rows, std::greater(), [](const auto& row) { return row.second.bytes; });
  rows.emplace_back("others", others);
  auto text = fmt::format("{:32} {:>7} {:>10} {:>6}\n", "operator", "calls", "MB", "share");
  for (const auto& [name, entry] : rows) {
    text += fmt::format("{:32} {:>7} {:>10.1f} {:>5.1f}%\n", name, entry.calls, in_mb(entry.bytes),
                        100 * static_cast<double>(entry.bytes) / all);
  }
  const auto& least = bytes.least;
  text += fmt::format(
      "all {:.1f} MB, {:.2f} x the least, {:.1f}: weights {:.1f}, kept for the backward {:.1f}, "
      "gradients {:.1f}, update {:.1f}\n",
      all / mega, all / static_cast<double>(least.all()), in_mb(least.all()), in_mb(least.weights),
      in_mb(least.kept), in_mb(least.gradients), in_mb(least.update));
  return text;
}

}  // namespace tessera::bench
