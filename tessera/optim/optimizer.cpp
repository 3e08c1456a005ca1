#include "tessera/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/optimizer_states.h"
#include "tessera/kernels/flat.h"
#include "tessera/kernels/fp8.h"
#include "tessera/optim/algorithm.h"
#include "tessera/optim/muon.h"

namespace tessera::optim {
namespace {

using torch::Tensor;

void check(const Slice& slice, const OptimizerOptions& options) {
  const auto& parameter = slice.parameter;
  TORCH_INTERNAL_ASSERT(parameter.sizes() == slice.gradient.sizes());
  TORCH_INTERNAL_ASSERT(!slice.on_drives || parameter.is_cpu() || parameter.is_meta());
  TORCH_INTERNAL_ASSERT(!parameter.is_meta() || slice.treatment != Treatment::matrices);
  TORCH_INTERNAL_ASSERT(!slice.copy.defined() || slice.copy.sizes() == parameter.sizes());
  TORCH_INTERNAL_ASSERT(
      slice.treatment != Treatment::blocks ||
      ((options.type == OptimizerType::adamw8bit || options.type == OptimizerType::adamw) &&
       parameter.numel() % kStateBlock == 0));
  TORCH_CHECK_VALUE(
      options.state_dtype == torch::kFloat32 ||
          (options.state_dtype == torch::kBFloat16 && options.type == OptimizerType::adamw),
      "optimizer: expected states in float32, or with adamw in bfloat16, got ",
      options.state_dtype);
}

/// What updates slices other than muon's matrices.
const Algorithm& algorithm_of(OptimizerType type, Treatment treatment) {
  if (treatment == Treatment::blocks) {
    return type == OptimizerType::adamw8bit ? kAdamW8bit : kAdamWFp8;
  }
  switch (type) {
    case OptimizerType::adamw:
    case OptimizerType::adamw8bit:
    case OptimizerType::muon:
      return kAdamW;
    case OptimizerType::sgd:
      return kSgd;
    case OptimizerType::lion:
      return kLion;
  }
  TORCH_INTERNAL_ASSERT(false);
}

/// Has it numbers that the kernels do not read?
bool is_narrow(const Slice& slice) {
  return slice.parameter.scalar_type() == torch::kHalf ||
         slice.gradient.scalar_type() == torch::kHalf || slice.gradient.element_size() == 1;
}

/// A gradient of 8 bits or float16 in float32, others as they are.
Tensor readable_gradient(const Slice& slice) {
  if (slice.gradient.scalar_type() == torch::kHalf) return slice.gradient.to(torch::kFloat32);
  if (slice.gradient.element_size() > 1) return slice.gradient;
  return kernels::from_fp8(slice.gradient, torch::kFloat32, slice.gradient_factor.item<float>());
}

/// Is the parameter kept among the states?
bool is_among_states(const Slice& slice) {
  return slice.parameter.is_meta() && slice.copy.defined();
}

Slice part_of(const Slice& whole, int64_t begin, int64_t count) {
  auto part = whole;
  part.parameter = whole.parameter.narrow(0, begin, count);
  part.gradient = whole.gradient.narrow(0, begin, count);
  if (whole.copy.defined()) part.copy = whole.copy.narrow(0, begin, count);
  part.first_position += begin;
  return part;
}

/// Brings the new numbers of a slice's parameter, float32, to what is kept of it.
void round_into(const Slice& slice, const Tensor& numbers, const OptimizerOptions& options,
                int64_t step) {
  if (options.stochastic_rounding && at::isReducedFloatingType(slice.parameter.scalar_type())) {
    kernels::round_stochastically(
        numbers, slice.parameter,
        {.seed = options.seed, .step = step, .first_position = slice.first_position});
  } else {
    Tensor(slice.parameter).copy_(numbers);
  }
}

}  // namespace

Tensor scaled_gradient(const Update& update) {
  auto gradient = readable_gradient(update.slice).to(torch::kFloat32);
  if (update.gradient_scale != 1) gradient.mul_(update.gradient_scale);
  return gradient;
}

void store(const Update& update, const Tensor& parameter) {
  const auto& slice = update.slice;
  if (slice.copy.defined()) Tensor(slice.copy).copy_(parameter);
  if (!parameter.is_same(slice.parameter))
    round_into(slice, parameter, update.options, update.step);
}

Optimizer::Optimizer(std::vector<Slice> slices, OptimizerOptions options)
    : slices_(std::move(slices)), options_(std::move(options)), states_(slices_.size()) {
  for (const auto& slice : slices_) check(slice, options_);
  std::vector<StoredStates::Slice> stored(slices_.size());
  for (size_t i = 0; i < slices_.size(); ++i) {
    stored[i] = {.numbers = slices_[i].parameter.numel(), .kinds = stored_kinds(i)};
  }
  if (std::ranges::any_of(stored, [](const auto& slice) { return !slice.kinds.empty(); }))
    stored_ = std::make_unique<StoredStates>(std::move(stored), options_.storage);
}

std::vector<StateKind> Optimizer::stored_kinds(size_t slice) const {
  const auto& own = slices_[slice];
  if (!own.on_drives) return {};
  auto kinds = state_kinds(own.treatment);
  if (is_among_states(own)) kinds.push_back({"parameter", own.parameter.scalar_type()});
  return kinds;
}

offload::StoredBytes Optimizer::stored_parameter(size_t slice) {
  TORCH_INTERNAL_ASSERT(is_among_states(slices_[slice]));
  return stored_->bytes(slice, stored_kinds(slice).size() - 1);
}

/// The slice whole; where its states are on drives, as much of it as is in memory at a time; where
/// its numbers are brought to float32 and back, pieces, so that they need not be there twice.
void Optimizer::for_each_part(size_t slice, const UsePart& use) {
  constexpr int64_t kPiece = 1 << 18;  // numbers: whole blocks
  auto own = slices_[slice];
  const bool has_parameter = is_among_states(own);
  if (own.bring_gradient) own.bring_gradient();
  if (own.bring) (has_parameter ? own.copy : own.parameter) = own.bring();
  if (is_stored(slice)) {
    return stored_->update(slice, [&](int64_t begin, int64_t n, const std::vector<Tensor>& stored) {
      auto part = part_of(own, begin, n);
      auto states = stored;
      if (has_parameter) {
        part.parameter = states.back();
        states.pop_back();
      }
      use(part, states);
    });
  }
  const auto& kept = state(slice);
  if (!is_narrow(own)) return use(own, kept);
  const auto kinds = state_kinds(own.treatment);
  const int64_t count = own.parameter.numel();
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, count);
    std::vector<Tensor> states;
    for (size_t i = 0; i < kinds.size(); ++i) {
      states.push_back(kept[i].slice(0, begin / kinds[i].block, kinds[i].count(end)));
    }
    use(part_of(own, begin, end - begin), states);
  }
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  const torch::NoGradGuard no_grad;
  begin_step();
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (slices_[i].treatment != Treatment::matrices) update(i, learning_rate, gradient_scale);
  }
  if (options_.type == OptimizerType::muon) step_muon(learning_rate, gradient_scale);
}

void Optimizer::update(size_t slice, double learning_rate, double gradient_scale) {
  const torch::NoGradGuard no_grad;
  const auto treatment = slices_[slice].treatment;
  TORCH_INTERNAL_ASSERT(treatment != Treatment::matrices);
  const auto& algorithm = algorithm_of(options_.type, treatment);
  for_each_part(slice, [&](const Slice& part, const std::vector<Tensor>& states) {
    auto read = part;
    if (part.parameter.scalar_type() == torch::kHalf) {
      read.parameter = part.parameter.to(torch::kFloat32);
    }
    read.gradient = readable_gradient(part);
    // What the kernels round is bfloat16, and of the parameter as it is kept.
    const bool copies = part.copy.defined() && (part.copy.scalar_type() != torch::kBFloat16 ||
                                                part.parameter.scalar_type() == torch::kHalf);
    if (copies) read.copy = Tensor();
    algorithm.update({read, states, options_, learning_rate * part.rate, gradient_scale, step_});
    if (!read.parameter.is_same(part.parameter)) {
      round_into(part, read.parameter, options_, step_);
    }
    if (copies) Tensor(part.copy).copy_(part.parameter);
  });
}

void Optimizer::step_muon(double learning_rate, double gradient_scale) {
  std::vector<size_t> matrices;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (slices_[i].treatment == Treatment::matrices) matrices.push_back(i);
  }
  TORCH_INTERNAL_ASSERT(options_.orthogonalise);
  const auto direction = [&](size_t slice) {
    std::vector<Tensor> parts;
    for_each_part(matrices[slice], [&](const Slice& part, const std::vector<Tensor>& states) {
      parts.push_back(muon_direction(
          {part, states, options_, learning_rate * part.rate, gradient_scale, step_}));
    });
    return parts.size() == 1 ? parts.front() : torch::cat(parts);
  };
  const auto apply = [&](size_t slice, const Tensor& orthogonal) {
    const auto& whole = slices_[matrices[slice]];
    apply_muon({whole, {}, options_, learning_rate * whole.rate, gradient_scale, step_},
               orthogonal);
  };
  options_.orthogonalise({.direction = direction, .apply = apply});
}

std::vector<StateKind> Optimizer::state_kinds(Treatment treatment) const {
  auto kinds = treatment == Treatment::matrices
                   ? std::vector<StateKind>{{"momentum_buffer"}}
                   : algorithm_of(options_.type, treatment).states(options_);
  double bytes = 0;
  for (const auto& kind : kinds) {
    bytes += static_cast<double>(torch::elementSize(kind.dtype)) / static_cast<double>(kind.block);
  }
  const auto states = options_.state_dtype == torch::kBFloat16 ? StateType::bf16 : StateType::fp32;
  TORCH_INTERNAL_ASSERT(
      bytes == tessera::optim::state_bytes(options_.type, treatment, options_.momentum, states));
  return kinds;
}

const std::vector<Tensor>& Optimizer::state(size_t index) {
  auto& kept = states_[index];
  const auto& parameter = slices_[index].parameter;
  if (!kept.empty()) return kept;
  for (const auto& kind : state_kinds(slices_[index].treatment)) {
    kept.push_back(
        torch::zeros({kind.count(parameter.numel())}, parameter.options().dtype(kind.dtype)));
  }
  return kept;
}

std::vector<std::pair<StateKind, Tensor>> Optimizer::states(size_t slice) {
  const auto kinds = state_kinds(slices_[slice].treatment);
  std::vector<std::pair<StateKind, Tensor>> named;
  if (slices_[slice].on_drives) {
    const auto numbers = slices_[slice].parameter.numel();
    for (const auto& kind : kinds) {
      named.emplace_back(
          kind, torch::empty({kind.count(numbers)}, torch::dtype(kind.dtype).device(torch::kMeta)));
    }
    return named;
  }
  const auto& kept = state(slice);
  for (size_t i = 0; i < kinds.size(); ++i) named.emplace_back(kinds[i], kept[i]);
  return named;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = stored_ ? stored_->memory_bytes() : 0;
  for (const auto& kept : states_) {
    for (const auto& tensor : kept) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace tessera::optim
