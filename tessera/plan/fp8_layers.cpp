#include "tessera/plan/fp8_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/config/precision.h"
#include "tessera/models/spec.h"
#include "tessera/report/number.h"

namespace tessera::plan {
namespace {

constexpr std::string_view kAuto = "auto";

/// What a recipe does on a device.
struct Fp8Cost {
  double products = 3;               ///< of three, that are of 8 bits
  double reached = 0;                ///< of the device's speed in 8 bits
  std::array<double, 3> bytes = {};  ///< moved to round a 16-bit number of input, weight, gradient
};

/// A pass to find the largest reads 2 bytes; rounding reads 2 and writes 1, or 2 for both orders; a row is
/// still in the cache after its largest is known, a column is not.
Fp8Cost cost_of(Matmul matmul) {
  constexpr double kReached = 0.64, kByRow = 0.55;
  switch (matmul) {
    case Matmul::as_compute:
      break;
    case Matmul::fp8_tensor:
      return {.reached = kReached, .bytes = {6, 6, 6}};
    case Matmul::fp8_delayed:
      return {.reached = kReached, .bytes = {4, 4, 4}};
    case Matmul::fp8_row:
      return {.reached = kByRow, .bytes = {8, 8, 8}};
    case Matmul::fp8_row_wgrad16:
      return {.products = 2, .reached = kByRow, .bytes = {3, 8, 3}};
    case Matmul::fp8_block:
    case Matmul::mxfp8:
      return {.reached = kReached, .bytes = {4, 4, 4}};
  }
  __builtin_unreachable();
}

/// Is an entry of fp8_keep about this layer?
bool keeps(const std::string& entry, const Fp8Layer& layer, const config::PrecisionSection& section,
           int64_t num_blocks) {
  if (entry != kAuto) {
    const bool at_end = layer.block == 0 || layer.block + 1 == num_blocks;
    return config::keeps_layer(entry, layer.path, at_end);
  }
  const int64_t multiple = fp8_multiple(section.matmul);
  const bool fits = layer.out % multiple == 0 && layer.in % multiple == 0;
  return layer.gain <= 1 || (!fits && !section.fp8_pad);
}

/// The path with `*` for the numbers of block and expert, behind which alike layers stand.
std::string without_numbers(const std::string& path) {
  std::string pattern;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    pattern += (begin == 0 ? "" : ".") + (number ? "*" : part);
    begin = end + 1;
  }
  return pattern;
}

std::string size_text(const Fp8Layer& layer) {
  return fmt::format("[{}, {}] x {}", layer.out, layer.in, report::with_commas(layer.rows));
}

[[noreturn]] void nothing_left(const std::vector<Fp8Layer>& layers) {
  const auto best = std::ranges::max_element(layers, {}, &Fp8Layer::gain);
  user_error(
      "precision.fp8_keep: auto leaves no layer in 8 bits: {} {} has the most of it, {:.2f} x the "
      "speed of 16 bits on a device with 8-bit units; set precision.matmul to as_compute, or "
      "remove auto to see what 8 bits do to the loss",
      without_numbers(best->path), size_text(*best), best->gain);
}

}  // namespace

double fp8_gain(Matmul matmul, int64_t out, int64_t in, int64_t rows) {
  constexpr double kFlops16 = 0.78 * 989e12, kFlops8 = 1979e12, kBytesPerSecond = 0.92 * 3.35e12;
  const auto cost = cost_of(matmul);
  const auto product =
      2.0 * static_cast<double>(out) * static_cast<double>(in) * static_cast<double>(rows);
  const auto [of_input, of_weight, of_gradient] = cost.bytes;
  const double bytes = of_input * static_cast<double>(rows * in) +
                       of_weight * static_cast<double>(out * in) +
                       of_gradient * static_cast<double>(rows * out);
  const double seconds = cost.products * product / (cost.reached * kFlops8) +
                         (3 - cost.products) * product / kFlops16 + bytes / kBytesPerSecond;
  return 3 * product / kFlops16 / seconds;
}

std::vector<Fp8Layer> fp8_layers(const config::RunConfig& config, int64_t num_blocks,
                                 const RankPart& part) {
  const auto& section = config.precision;
  const bool multiplies = section.matmul != Matmul::as_compute;
  if (!multiplies && !section.has_fp8_weights()) return {};
  const int64_t rows = part.micro_batch * config.data.seq_len;
  const auto& experts = part.shape.experts;
  const int64_t expert_rows =
      std::max<int64_t>(1, rows * part.mesh.ep * experts.top_k / experts.token_ranks /
                               std::max<int64_t>(1, experts.num));
  std::vector<Fp8Layer> layers;
  std::vector<bool> used(section.fp8_keep.size());
  for (int64_t block = 0; block < num_blocks; ++block) {
    const auto shape = models::shape_of_layer(part.shape, block);
    const auto specs = models::spec_of(shape.family).parameters(shape);
    for (const auto& spec : specs.block) {
      constexpr std::string_view kSuffix = ".weight";
      if (spec.shape.size() != 2 || !spec.name.ends_with(kSuffix) || spec.of_router) continue;
      auto& layer = layers.emplace_back(
          Fp8Layer{.path = fmt::format("{}{}.{}", specs.block_prefix, block,
                                       spec.name.substr(0, spec.name.size() - kSuffix.size())),
                   .block = block,
                   .out = spec.shape[0],
                   .in = spec.shape[1],
                   .rows = spec.of_expert ? expert_rows : rows});
      if (multiplies) layer.gain = fp8_gain(section.matmul, layer.out, layer.in, layer.rows);
      for (size_t i = 0; i < used.size(); ++i) {
        if (keeps(section.fp8_keep[i], layer, section, num_blocks)) layer.kept = used[i] = true;
      }
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] || section.fp8_keep[i] == kAuto) continue;
    user_error(
        "precision.fp8_keep: '{}' matches no linear layer of a block; expected auto, first_last, "
        "or such as *.down_proj",
        section.fp8_keep[i]);
  }
  if (std::ranges::all_of(layers, &Fp8Layer::kept)) {
    if (config::keeps_losers(section)) nothing_left(layers);
    user_error(
        "precision.fp8_keep: {} leave no layer in 8 bits; take fewer, or remove precision.matmul "
        "and precision.weights fp8",
        fmt::join(section.fp8_keep, ", "));
  }
  return layers;
}

std::set<std::string> weights_in_fp8(const config::RunConfig& config, int64_t num_blocks,
                                     const RankPart& part) {
  std::set<std::string> names;
  if (!config.precision.has_fp8_weights()) return names;
  for (const auto& layer : fp8_layers(config, num_blocks, part)) {
    if (!layer.kept) names.insert(layer.path + ".weight");
  }
  return names;
}

std::vector<std::string> fp8_table(const std::vector<Fp8Layer>& layers) {
  struct Row {
    std::string name, size;
    double gain = 0;
    int64_t in_8_bits = 0, kept = 0;
  };
  std::vector<Row> rows;
  for (const auto& layer : layers) {
    const Row own{
        .name = without_numbers(layer.path), .size = size_text(layer), .gain = layer.gain};
    auto row = std::ranges::find_if(
        rows, [&](const auto& other) { return other.name == own.name && other.size == own.size; });
    if (row == rows.end()) row = rows.insert(row, own);
    ++(layer.kept ? row->kept : row->in_8_bits);
  }
  size_t name = 0, size = 0;
  for (const auto& row : rows) {
    name = std::max(name, row.name.size()), size = std::max(size, row.size.size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    const auto kept = row.in_8_bits == 0
                          ? "kept"
                          : fmt::format("{} of {} kept", row.kept, row.kept + row.in_8_bits);
    lines.push_back(fmt::format("{:<{}}  {:<{}}  {:.2f} x  {}", row.name, name, row.size, size,
                                row.gain, row.kept == 0 ? "8 bits" : kept));
  }
  return lines;
}

}  // namespace tessera::plan
