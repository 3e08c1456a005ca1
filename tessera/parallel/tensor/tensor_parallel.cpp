#include "tessera/parallel/tensor/tensor_parallel.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/autograd/shared_input.h"
#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/layers.h"
#include "tessera/parallel/tensor/collectives.h"
#include "tessera/parallel/tensor/match_plan.h"

namespace tessera::parallel {
namespace {

using nn::TensorRule;
using nn::TensorStyle;
using torch::Tensor;

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The part of `count` things that rank `rank` has.
Range even_part(int64_t count, int64_t rank, int64_t ranks) {
  return {count * rank / ranks, count * (rank + 1) / ranks};
}

/// A dimension that is cut: the whole tensor seen as [outer, size, inner].
struct Cut {
  int64_t outer = 1, size = 1, inner = 1;
  Range range;  ///< of size
};

/// Divides the modules of one model over an axis.
class Division {
 public:
  Division(const mesh::DeviceMesh& mesh, const mesh::Axis& axis,
           const TensorParallelOptions& options, const torch::nn::Module& model)
      : mesh_(mesh), activations_{axis, options.sequence_parallel} {
    for (const auto& module : model.modules()) {
      if (const auto* head = module->as<nn::LanguageModelHeadImpl>()) {
        vocabulary_[module.get()] = head->weight.size(0);
      }
    }
  }

  void divide(const std::string& path, torch::nn::Module& module, const TensorRule& rule);
  TensorParts take_parts() { return std::move(parts_); }

 private:
  int rank() const { return activations_.axis.rank(); }
  int ranks() const { return activations_.axis.size(); }

  Range divide_features(const std::string& path, const TensorRule& rule, int64_t features,
                        Replication& replication) const;
  Range divide_vocabulary(const std::string& path, const Tensor& weight);
  void column_wise(const std::string& path, torch::nn::Module& module, const TensorRule& rule);
  void row_wise(const std::string& path, torch::nn::Module& module, const TensorRule& rule);
  void divided_norm(const std::string& path, torch::nn::Module& module, const TensorRule& rule);
  void region(const std::string& path, const torch::nn::Module& module, const TensorRule& rule);
  void embedding(const std::string& path, torch::nn::Module& module);
  void head(const std::string& path, torch::nn::Module& module);
  void positions(const std::string& path, torch::nn::Module& module);
  void keep_part(const std::string& name, const Tensor& parameter, int64_t dim, const Cut& cut,
                 const Replication& replication);
  /// `summands`: each rank's gradient comes from what it alone has.
  void keep_whole(const std::string& name, const Tensor& parameter, bool summands);
  void keep_whole(const std::string& path, const torch::nn::Module& module, bool summands);

  const mesh::DeviceMesh& mesh_;
  Activations activations_;
  std::map<const torch::nn::Module*, int64_t> vocabulary_;  // of heads
  TensorParts parts_;
};

template <typename Kind>
Kind& as(torch::nn::Module& module, const std::string& path, const char* expected) {
  auto* found = dynamic_cast<Kind*>(&module);
  TORCH_CHECK_VALUE(found != nullptr, "tensor plan: ", path, ": expected ", expected, ", got ",
                    module.name());
  return *found;
}

constexpr const char* kLinear = "a Linear or Conv1D";

/// This rank's features of `features`, whole heads.
Range Division::divide_features(const std::string& path, const TensorRule& rule, int64_t features,
                                Replication& replication) const {
  replication = Replication();
  if (rule.heads == 0) return even_part(features, rank(), ranks());
  const int64_t heads = rule.heads, width = features / heads;
  if (heads % ranks() == 0) {
    const auto own = even_part(heads, rank(), ranks());
    return {own.begin * width, own.end * width};
  }
  if (!rule.repeats_heads || ranks() % heads != 0) {
    user_error("{}: {} heads cannot be divided over {} ranks of tp; set tp to a divisor", path,
               heads, ranks());
  }
  const int neighbours = ranks() / static_cast<int>(heads);
  replication = {.ranks = mesh_.axis("tp", {.split = neighbours}), .partial_gradients = true};
  const int64_t own = rank() / neighbours;
  return {own * width, (own + 1) * width};
}

/// `parameter` becomes the part of itself that `cut` describes, along `dim`.
void Division::keep_part(const std::string& name, const Tensor& parameter, int64_t dim,
                         const Cut& cut, const Replication& replication) {
  const int64_t kept = cut.range.size();
  TensorPart part{.shape = parameter.sizes().vec(),
                  .stripe = {.offset = cut.range.begin * cut.inner,
                             .run = kept * cut.inner,
                             .stride = cut.size * cut.inner},
                  .ranks = activations_.axis,
                  .replication = replication};
  auto shape = part.shape;
  shape[dim] = shape[dim] / cut.size * kept;
  const torch::NoGradGuard no_grad;
  auto values = parameter.is_meta() ? at::empty(shape, parameter.options().requires_grad(false))
                                    : parameter.detach()
                                          .view({cut.outer, cut.size, cut.inner})
                                          .narrow(1, cut.range.begin, kept)
                                          .reshape(shape)
                                          .clone();
  parameter.set_data(values);
  parts_.emplace(name, std::move(part));
}

/// `weight` cut along `dim`, of which `parts` equal ones are each cut to `range`.
Cut cut_of(const Tensor& weight, int64_t dim, int64_t parts, Range range) {
  int64_t outer = parts, inner = 1;
  for (int64_t i = 0; i < dim; ++i) outer *= weight.size(i);
  for (int64_t i = dim + 1; i < weight.dim(); ++i) inner *= weight.size(i);
  return {.outer = outer, .size = weight.size(dim) / parts, .inner = inner, .range = range};
}

void check_dividable(const std::string& path, const nn::LinearParameter& parameter) {
  if (parameter.undividable.empty()) return;
  user_error("{}: tp cannot divide {}: {}", path, parameter.name, parameter.undividable);
}

void Division::column_wise(const std::string& path, torch::nn::Module& given,
                           const TensorRule& rule) {
  for (const auto& parameter : as<nn::LinearImpl>(given, path, kLinear).linear_parameters()) {
    const auto name = joined(path, parameter.name);
    check_dividable(path, parameter);
    if (parameter.out_dim < 0) {
      keep_whole(name, parameter.values, /*summands=*/true);
      continue;
    }
    Replication replication;
    const auto range = divide_features(
        path, rule, parameter.values.size(parameter.out_dim) / rule.parts, replication);
    keep_part(name, parameter.values, parameter.out_dim,
              cut_of(parameter.values, parameter.out_dim, rule.parts, range), replication);
    if (parameter.kept) *parameter.kept = parts_.at(name).stripe;
  }
}

void Division::row_wise(const std::string& path, torch::nn::Module& given, const TensorRule& rule) {
  auto& module = as<nn::LinearImpl>(given, path, kLinear);
  for (const auto& parameter : module.linear_parameters()) {
    const auto name = joined(path, parameter.name);
    check_dividable(path, parameter);
    if (parameter.in_dim < 0) {
      keep_whole(name, parameter.values,
                 /*summands=*/!parameter.after_sum || rule.summand || activations_.sequence);
      continue;
    }
    Replication replication;
    const int64_t together = parameter.in_features;
    const int64_t features = parameter.values.size(parameter.in_dim) * together;
    auto range = divide_features(path, rule, features, replication);
    if (range.begin % together != 0 || range.end % together != 0) {
      user_error(
          "{}: expected {} ranks of tp to divide its {} input features into multiples of {} "
          "(blocks of its quantised weight); set tp lower, or keep it in int8",
          path, ranks(), features, together);
    }
    range = {range.begin / together, range.end / together};
    keep_part(name, parameter.values, parameter.in_dim,
              cut_of(parameter.values, parameter.in_dim, 1, range), replication);
    if (parameter.kept) *parameter.kept = parts_.at(name).stripe;
  }
  for (const auto& child : module.children()) {
    Replication replication;
    if (auto* dropout = dynamic_cast<nn::DropoutImpl*>(child.get())) {
      dropout->divide_features(divide_features(path, rule, module.in_features, replication).begin,
                               module.in_features);
    }
  }
  module.add_up = adding_over(activations_.axis);
  if (rule.summand) {
    module.bias_share = 1.0 / ranks();
  } else {
    module.over_ranks = leave_product(activations_);
  }
}

void Division::divided_norm(const std::string& path, torch::nn::Module& given,
                            const TensorRule& rule) {
  auto& module = as<nn::RMSNormImpl>(given, path, "an RMSNorm");
  const int64_t features = module.weight.size(0);
  Replication replication;
  const auto range = divide_features(path, rule, features, replication);
  keep_part(joined(path, "weight"), module.weight, 0, cut_of(module.weight, 0, 1, range),
            replication);
  // Heads that several ranks have count once.
  const int64_t copies = rule.heads == 0 ? 1 : std::max<int64_t>(1, ranks() / rule.heads);
  module.divided = {.features = features,
                    .sum = [axis = activations_.axis, copies](const Tensor& part) {
                      return sum_over(part / copies, axis);
                    }};
}

void Division::region(const std::string& path, const torch::nn::Module& module,
                      const TensorRule& rule) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto name = joined(path, item.key());
    TORCH_CHECK_VALUE(item.value().dim() == 1 && item.value().size(0) == rule.heads,
                      "tensor plan: ", name, ": style region expects a number for each of ",
                      rule.heads, " heads, got ", item.value().sizes());
    Replication replication;
    const auto range = divide_features(path, rule, rule.heads, replication);
    keep_part(name, item.value(), 0, cut_of(item.value(), 0, 1, range), replication);
  }
}

/// Cuts an embedding or head to this rank's rows, which it returns.
Range Division::divide_vocabulary(const std::string& path, const Tensor& weight) {
  const auto range = even_part(weight.size(0), rank(), ranks());
  keep_part(joined(path, "weight"), weight, 0, cut_of(weight, 0, 1, range), Replication());
  return range;
}

void Division::embedding(const std::string& path, torch::nn::Module& given) {
  auto& module = as<nn::EmbeddingImpl>(given, path, "an Embedding");
  const auto range = divide_vocabulary(path, module.weight);
  module.first_row = range.begin;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.key() == "lora_embedding_A") {
      keep_part(joined(path, item.key()), item.value(), 1, cut_of(item.value(), 1, 1, range),
                Replication());
    } else if (item.key() == "lora_embedding_B") {
      keep_whole(joined(path, item.key()), item.value(), /*summands=*/true);
    }
  }
  module.add_hooks(
      {.replace_output = [to = activations_](Tensor& output) { output = leave(output, to); }});
}

void Division::head(const std::string& path, torch::nn::Module& given) {
  auto& module = as<nn::LanguageModelHeadImpl>(given, path, "a LanguageModelHead");
  const bool tied = !module.borrowed_parameters().empty();
  // A tied weight is divided with its embedding, which may have come before.
  const int64_t total = vocabulary_.at(&module);
  const auto range = even_part(total, rank(), ranks());
  if (!tied) divide_vocabulary(path, module.weight);
  const auto& axis = activations_.axis;
  const auto combine = [&axis](comm::ReduceOp op) {
    return [axis, op](const Tensor& values) { axis.all_reduce(values, op).wait(); };
  };
  module.vocabulary = {.first = range.begin,
                       .total = total,
                       .maximum = combine(comm::ReduceOp::max),
                       .sum = combine(comm::ReduceOp::sum)};
  std::vector<int64_t> sizes;
  for (int i = 0; i < ranks(); ++i) sizes.push_back(even_part(total, i, ranks()).size());
  module.add_hooks({.replace_output = [axis, sizes](Tensor& output) {
    if (output.dim() > 0) output = side_by_side(output, sizes, axis);  // logits, not the loss
  }});
}

void Division::positions(const std::string& path, torch::nn::Module& given) {
  auto& module = as<nn::EmbeddingImpl>(given, path, "an Embedding");
  keep_whole(joined(path, "weight"), module.weight, /*summands=*/false);  // of all positions
  module.add_hooks({.replace_output = [to = activations_](Tensor& output) {
    output = own_positions(output, to);
  }});
}

void Division::keep_whole(const std::string& name, const Tensor& parameter, bool summands) {
  parts_.emplace(
      name, TensorPart{.shape = parameter.sizes().vec(),
                       .stripe = {},
                       .ranks = activations_.axis,
                       .replication = {.ranks = activations_.axis, .partial_gradients = summands}});
}

void Division::keep_whole(const std::string& path, const torch::nn::Module& module, bool summands) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    keep_whole(joined(path, item.key()), item.value(), summands);
  }
}

void Division::divide(const std::string& path, torch::nn::Module& module, const TensorRule& rule) {
  if (rule.enters) {
    // The first argument: tables and masks that follow are the same everywhere. A head computes its
    // gradients in its forward.
    const bool shared = rule.style != TensorStyle::head;
    as<nn::Hookable>(module, path, "a Hookable module")
        .add_hooks({.after_forward = [](bool /*backward_follows*/) { autograd::share({}); },
                    .replace_first_input = [to = activations_,
                                            shared](Tensor& x) { x = enter(x, to, shared); }});
  }
  if (rule.leaves) {
    as<nn::Hookable>(module, path, "a Hookable module")
        .add_hooks({.replace_output = [to = activations_](Tensor& output) {
          output = leave(output, to);
        }});
  }
  if (ranks() == 1) return keep_whole(path, module, /*summands=*/false);
  switch (rule.style) {
    case TensorStyle::column_wise:
      return column_wise(path, module, rule);
    case TensorStyle::row_wise:
      return row_wise(path, module, rule);
    case TensorStyle::divided_norm:
      return divided_norm(path, module, rule);
    case TensorStyle::embedding:
      return embedding(path, module);
    case TensorStyle::head:
      return head(path, module);
    case TensorStyle::per_position:
      if (auto* dropout = dynamic_cast<nn::DropoutImpl*>(&module);
          dropout && activations_.sequence) {
        dropout->divide_sequence(rank(), ranks());
      }
      return keep_whole(path, module, /*summands=*/activations_.sequence);
    case TensorStyle::per_head:
      return keep_whole(path, module, /*summands=*/true);
    case TensorStyle::positions:
      return positions(path, module);
    case TensorStyle::region:
      return region(path, module, rule);
  }
}

}  // namespace

TensorParts tensor_parallel(torch::nn::Module& model, const nn::TensorPlan& plan,
                            const mesh::DeviceMesh& mesh, const TensorParallelOptions& options) {
  if (mesh.axis("tp").size() == 1) return {};
  const auto modules = match_plan(model, plan);
  const auto& axis = mesh.axis("tp");
  const bool apart = mesh.shape().expert_tp() < mesh.shape().tp;
  Division division(mesh, axis, options, model);
  Division of_experts(mesh, apart ? mesh.axis("etp") : axis, options, model);
  for (const auto& [path, module, rule] : modules) {
    (rule->of_expert ? of_experts : division).divide(path, *module, *rule);
  }
  auto parts = division.take_parts();
  parts.merge(of_experts.take_parts());
  return parts;
}

}  // namespace tessera::parallel
