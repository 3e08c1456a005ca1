#include "tessera/train/memory_account.h"

#include <algorithm>
#include <numeric>

namespace tessera::train {
namespace {

/// Of one kind of buffer of one unit.
struct Prediction {
  double parameters = 0, whole = 0, gradients = 0, gradient_slice = 0, states = 0;
};

int64_t content_of(const parallel::FlatBuffer& buffer) {
  int64_t elements = 0;
  for (const auto& entry : buffer.entries()) elements += entry.parameter.numel();
  return elements;
}

Prediction predict(const parallel::FlatBuffer& buffer, const config::RunConfig& config) {
  const auto elements = static_cast<double>(content_of(buffer));
  const double share = elements / buffer.options().num_slices;
  const auto bytes = [](const torch::Tensor& tensor) {
    return static_cast<double>(tensor.element_size());
  };
  Prediction result{.parameters = share * bytes(buffer.slice())};
  result.whole = elements * bytes(buffer.whole.tensor());
  if (buffer.slice_in_whole()) result.whole -= result.parameters;
  if (buffer.options().keeps_copy) result.parameters += share * bytes(buffer.gather_source());
  if (!buffer.trained()) return result;
  result.gradients = elements * bytes(buffer.gradient.tensor());
  if (!buffer.gradient_slice_in_gradient()) {
    result.gradient_slice = share * bytes(buffer.gradient_slice.tensor());
  }
  if (config.optimizer.type == "adamw") {
    result.states = 2 * share * (config.precision.optimizer_states == "bf16" ? 2 : 4);
  } else if (config.optimizer.momentum != 0) {
    result.states = share * bytes(buffer.slice());
  }
  return result;
}

/// The largest sum of `count` neighbours: units come and go in order.
double largest_neighbours(const std::vector<double>& values, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto end =
        values.begin() + static_cast<std::ptrdiff_t>(std::min(i + count, values.size()));
    largest = std::max(largest,
                       std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(i), end, 0.0));
  }
  return largest;
}

/// Gradients at the most: backward comes to the units in reverse; one unit's whole gradient is
/// computed while that of the one after it is reduced, and the slices of all that came before stay.
double peak_of_backward(const std::vector<double>& whole, const std::vector<double>& slices) {
  double peak = 0, slices_so_far = 0;
  for (size_t i = whole.size(); i-- > 0;) {
    slices_so_far += slices[i];
    peak = std::max(peak, whole[i] + (i + 1 < whole.size() ? whole[i + 1] : 0) + slices_so_far);
  }
  return peak;
}

}  // namespace

int64_t predicted_activation_bytes(const config::RunConfig& config, const config::ModelShape& shape,
                                   int64_t tokens) {
  if (shape.family != config::ModelFamily::llama || config.precision.compute != "fp32") return 0;
  const int64_t d = shape.dim, f = shape.ffn_dim, h = shape.num_heads;
  const int64_t q = h * shape.head_dim, k = shape.num_kv_heads * shape.head_dim;
  const auto& mode = config.memory.checkpointing;
  const int64_t every = config.memory.checkpoint_every;
  const int64_t kept = mode == "full"        ? d
                       : mode == "selective" ? 2 * d + 2 * q + 2 * k + 2 * f + h
                                             : 0;
  // Norms of heads keep what they norm, and a number for each head.
  const int64_t head_norms = shape.qk_norm ? q + k + h + shape.num_kv_heads : 0;
  const int64_t plain = 4 * d + 2 * q + 2 * k + 3 * f + h + 2 + head_norms;
  const int64_t checkpointed = mode == "none" ? 0 : (shape.num_layers + every - 1) / every;
  // Beside the blocks: the last one's output, and the gradient of the last norm's output.
  const int64_t floats =
      checkpointed * kept + (shape.num_layers - checkpointed) * plain + 2 * d + 1;
  return 4 * tokens * floats;
}

std::vector<report::MemoryPart> memory_account(const Run& run) {
  double parameters = 0, kept_whole = 0, kept_gradients = 0, states = 0;
  std::vector<double> passing_whole, passing_gradients, gradient_slices;
  for (const auto& unit : run.parallel.units()) {
    double whole = 0, gradients = 0, slice = 0;
    for (const auto& buffer : unit.buffers()) {
      const auto prediction = predict(buffer, run.config);
      parameters += prediction.parameters;
      slice += prediction.gradient_slice;
      states += prediction.states;
      (buffer.options().keeps_whole ? kept_whole : whole) += prediction.whole;
      (buffer.options().keeps_gradient ? kept_gradients : gradients) += prediction.gradients;
    }
    passing_whole.push_back(whole);
    passing_gradients.push_back(gradients);
    gradient_slices.push_back(slice);
  }
  // The unit at work and the one that is on the way.
  const auto& section = run.config.parallel;
  const bool prefetches = section.forward_prefetch || section.backward_prefetch != "none";
  const auto in_flight = std::min<int64_t>(section.max_gathered_units, prefetches ? 2 : 1);
  const auto gathered =
      kept_whole + largest_neighbours(passing_whole, static_cast<size_t>(in_flight));
  const auto gradients = kept_gradients + peak_of_backward(passing_gradients, gradient_slices);
  const auto measured = run.parallel.memory();
  int64_t buffers = 0;
  for (const auto& axis : run.axes) buffers += axis.buffer_bytes();
  const auto part = [](const char* name, double predicted, int64_t bytes) {
    return report::MemoryPart{name, static_cast<int64_t>(predicted), bytes};
  };
  return {part("parameters", parameters, measured.parameters),
          part("gathered", gathered, measured.peak_gathered),
          part("gradients", gradients, measured.peak_gradients),
          part("optimizer", states, run.optimizer.state_bytes()),
          part("activations",
               run.predicted_activations > 0 ? static_cast<double>(run.predicted_activations) : -1,
               run.peak_activations),
          part("communication", -1, buffers)};
}

}  // namespace tessera::train
