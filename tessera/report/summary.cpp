#include "tessera/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/report/fp8_rounding.h"
#include "tessera/report/number.h"

namespace tessera::report {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

/// Text that cannot steer a terminal; lines after the first are indented.
std::string indented(const std::string& text, size_t indent) {
  std::string out;
  for (const char c : printable(text, LineBreaks::kept)) {
    if (c == '\t') {
      out += "  ";
    } else {
      out += c;
      if (c == '\n') out.append(indent, ' ');
    }
  }
  return out;
}

std::string memory_line(const std::vector<int64_t>& peaks) {
  if (peaks.size() <= 4) {
    std::vector<std::string> each;
    for (const int64_t peak : peaks) each.push_back(format_bytes(peak));
    return fmt::format("{}{}", fmt::join(each, ", "), peaks.size() > 1 ? " (by rank)" : "");
  }
  const auto [least, largest] = std::minmax_element(peaks.begin(), peaks.end());
  return fmt::format("{} (rank {}) to {} (rank {})", format_bytes(*least), least - peaks.begin(),
                     format_bytes(*largest), largest - peaks.begin());
}

std::string bytes_line(const PredictedBytes& part) {
  auto measured = format_bytes(part.measured);
  if (part.predicted < 0) return measured;
  return fmt::format("{} (predicted {})", measured, format_bytes(part.predicted));
}

/// The units that cost the most waiting: "head 1.2 ms, layers.3 0.4 ms a step".
std::string unit_waits_line(std::vector<UnitWait> waits) {
  std::ranges::stable_sort(waits, std::greater(), &UnitWait::seconds);
  std::string line;
  for (size_t i = 0; i < std::min<size_t>(3, waits.size()) && waits[i].seconds >= 1e-6; ++i) {
    line +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", waits[i].unit, format_seconds(waits[i].seconds));
  }
  return line.empty() ? line : line + " a step";
}

std::string loss_line(const RunSummary& summary) {
  std::string line = fmt::format("{:.4f} -> {:.4f}", summary.first_loss, summary.last_loss);
  if (summary.validation_loss) {
    auto figures = shown_figures(summary.validation_figures);
    if (summary.loss_is_by_token) {
      figures.insert(figures.begin(),
                     fmt::format("perplexity {:.4g}", std::exp(*summary.validation_loss)));
    }
    const auto& start = summary.validation_loss_on_start;
    line +=
        fmt::format(", validation {}{:.4f} ({})", start ? fmt::format("{:.4f} -> ", *start) : "",
                    *summary.validation_loss, fmt::join(figures, ", "));
  }
  const auto& best = summary.best_validation;
  if (best && (!summary.validation_loss || best->second < *summary.validation_loss)) {
    line += fmt::format(", best {:.4f} at step {}", best->second, best->first);
  }
  return line;
}

/// The end of a text without the blanks behind it: of a long prompt what is asked last.
std::string end_of(std::string text) {
  constexpr size_t kMost = 300;
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  if (text.size() <= kMost) return text;
  size_t begin = text.size() - kMost;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) ++begin;
  return ".. " + text.substr(begin);
}

using Lines = std::vector<std::pair<std::string, std::string>>;

/// Each answer beside what was asked.
void add_answers(const std::vector<HeldOutAnswer>& answers, size_t indent, Lines& lines) {
  for (const auto& [prompt, expected, before, after] : answers) {
    lines.emplace_back("held out", indented(end_of(prompt), indent));
    lines.emplace_back("  the data", indented(end_of(expected), indent));
    if (before) lines.emplace_back("  before", indented(end_of(*before), indent));
    lines.emplace_back("  after", indented(end_of(after), indent));
  }
}

/// ", dropped 3.1 % at most (layer 2)" of the layer that dropped most.
std::string dropped_text(const std::vector<ExpertSummary>& experts) {
  const auto share = [](const ExpertSummary& layer) { return layer.load.dropped.value_or(-1); };
  const auto most = std::ranges::max_element(experts, {}, share);
  if (!most->load.dropped) return "";
  return fmt::format(", dropped {:.2g} % at most (layer {})", 100 * *most->load.dropped,
                     most->load.layer);
}

/// The layer with the fullest expert: "MaxVio 0.31 (layer 2, of the last 50 steps)".
std::string experts_line(const RunSummary& summary) {
  const auto violation = [](const ExpertSummary& layer) { return layer.load.max_violation(); };
  const auto worst = std::ranges::max_element(summary.experts, {}, violation);
  double entropy = 0;
  for (const auto& layer : summary.experts) {
    entropy += layer.load.entropy / static_cast<double>(summary.experts.size());
  }
  return fmt::format(
      "MaxVio {:.2f} at most (layer {}), {:.2f} in a step, entropy {:.2f}{}{}", violation(*worst),
      worst->load.layer, worst->mean_of_max_violation, entropy, dropped_text(summary.experts),
      summary.forced_balance ? "; NOT ROUTED: experts took turns (moe.force_balance)" : "");
}

/// By layer.
nlohmann::ordered_json experts_json(const std::vector<ExpertSummary>& experts) {
  auto layers = nlohmann::ordered_json::object();
  for (const auto& [load, mean_of_max_violation] : experts) {
    auto& layer = layers[std::to_string(load.layer)];
    layer = {{"tokens", load.tokens},
             {"max_violation", load.max_violation()},
             {"mean_of_max_violation", mean_of_max_violation},
             {"entropy", load.entropy}};
    if (load.dropped) layer["dropped"] = *load.dropped;
  }
  return layers;
}

/// "underflow 0.4 % at most (gradient of model.layers.1.mlp.down_proj), overflow 0 %".
std::string fp8_line(const std::vector<Fp8Rounding>& layers) {
  const auto part = [&](const char* name, double Fp8Rounding::Operand::*share) {
    const auto worst = worst_of(layers, share);
    auto text = fmt::format("{} {:.2g} %", name, 100 * worst.share);
    if (worst.share > 0) text += fmt::format(" at most ({} of {})", worst.operand, worst.path);
    return text;
  };
  return part("underflow", &Fp8Rounding::Operand::underflow) + ", " +
         part("overflow", &Fp8Rounding::Operand::overflow);
}

nlohmann::ordered_json fp8_layers_json(const std::vector<Fp8Rounding>& layers) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& layer : layers) {
    for (size_t i = 0; i < layer.operands.size(); ++i) {
      const auto& own = layer.operands[i];
      json[layer.path][std::string(Fp8Rounding::kOperands[i])] = {{"amax", own.amax},
                                                                  {"scale", own.scale},
                                                                  {"underflow", own.underflow},
                                                                  {"overflow", own.overflow}};
    }
  }
  return json;
}

std::string mfu_line(const RunSummary& summary) {
  if (summary.mfu < 0 || summary.matmul_peak_flops <= 0) return "unknown";
  const bool tera = summary.matmul_peak_flops >= 1e12;
  auto line =
      fmt::format("{:.1f} % of {:.3g} {}FLOP/s{}", 100 * summary.mfu,
                  summary.matmul_peak_flops / (tera ? 1e12 : 1e9), tera ? "T" : "G",
                  summary.matmul_peak_note.empty() ? "" : " (" + summary.matmul_peak_note + ")");
  // Some, as torchtitan, count a query's products with keys that it does not see.
  if (summary.masked_share >= 0.005) {
    line += fmt::format("; {:.1f} % with what the mask hides",
                        100 * summary.mfu * (1 + summary.masked_share));
  }
  return line;
}

std::string waiting_line(const RunSummary& summary) {
  auto line = fmt::format("{:.1f} % of step time for communication",
                          100 * summary.communication_wait_share);
  if (summary.drive_wait_share)
    line += fmt::format(", {:.1f} % for drives", 100 * *summary.drive_wait_share);
  return line;
}

}  // namespace

void StepTotals::Sums::add(const StepRecord& record) {
  seconds += record.step_seconds;
  tokens += record.tokens_per_second * record.step_seconds;
  waited += record.communication_wait_seconds;
  if (record.drive_wait_seconds)
    waited_for_drives = waited_for_drives.value_or(0) + *record.drive_wait_seconds;
  if (record.mfu < 0) return;
  mfu_seconds += record.step_seconds;
  mfu += record.mfu * record.step_seconds;
}

void StepTotals::add(const StepRecord& record) {
  (losses_.empty() ? first_ : later_).add(record);
  losses_.emplace_back(record.step, record.loss);
  step_seconds_.push_back(record.step_seconds);
}

void StepTotals::fill(RunSummary& summary) const {
  if (losses_.empty()) return;
  summary.steps = static_cast<int64_t>(losses_.size());
  summary.first_loss = losses_.front().second;
  summary.last_loss = losses_.back().second;
  const bool only_one = losses_.size() == 1;
  summary.median_step_seconds =
      median({step_seconds_.begin() + (only_one ? 0 : 1), step_seconds_.end()});
  const Sums& sums = only_one ? first_ : later_;
  if (sums.seconds > 0) summary.tokens_per_second = sums.tokens / sums.seconds;
  if (sums.seconds > 0) summary.communication_wait_share = sums.waited / sums.seconds;
  if (sums.seconds > 0 && sums.waited_for_drives)
    summary.drive_wait_share = *sums.waited_for_drives / sums.seconds;
  if (sums.mfu_seconds > 0) summary.mfu = sums.mfu / sums.mfu_seconds;
}

std::string format_summary(const RunSummary& summary) {
  Lines lines{{"run", fmt::format("{} steps on {} rank{} in {}", with_commas(summary.steps),
                                  summary.world_size, summary.world_size == 1 ? "" : "s",
                                  format_seconds(summary.total_seconds))},
              {"model", format_count(static_cast<double>(summary.parameters)) + " parameters"},
              {"loss", loss_line(summary)}};
  if (summary.seconds_to_first_step > 0) {
    lines.emplace_back("first step",
                       format_seconds(summary.seconds_to_first_step) + " after launch");
  }
  lines.emplace_back("median step", format_seconds(summary.median_step_seconds));
  lines.emplace_back("speed", with_commas(std::llround(summary.tokens_per_second)) + " tokens/s");
  lines.emplace_back("MFU", mfu_line(summary));
  lines.emplace_back("waiting", waiting_line(summary));
  if (const auto waits = unit_waits_line(summary.unit_waits); !waits.empty()) {
    lines.emplace_back("  by unit", waits);
  }
  if (!summary.experts.empty()) lines.emplace_back("experts", experts_line(summary));
  if (!summary.fp8.empty()) lines.emplace_back("8 bits", fp8_line(summary.fp8));
  if (summary.skipped_steps > 0) {
    lines.emplace_back("skipped", fmt::format("{} steps with NaN or infinity",
                                              with_commas(summary.skipped_steps)));
  }
  if (!summary.peak_memory_bytes.empty()) {
    lines.emplace_back("peak memory", memory_line(summary.peak_memory_bytes));
  }
  for (const auto& part : summary.memory) lines.emplace_back("  " + part.name, bytes_line(part));
  if (!summary.traffic.empty()) lines.emplace_back("traffic", "of rank 0 in a step");
  for (const auto& part : summary.traffic) lines.emplace_back("  " + part.name, bytes_line(part));
  lines.emplace_back("files", summary.run_dir);
  size_t width = 0;
  for (const auto& [key, value] : lines) width = std::max(width, key.size());
  const size_t indent = 2 + width + 2;
  if (summary.sample) lines.emplace_back("sample", indented(*summary.sample, indent));
  add_answers(summary.answers, indent, lines);
  std::string out;
  for (const auto& [key, value] : lines) out += fmt::format("  {:<{}}  {}\n", key, width, value);
  return out;
}

std::string to_json(const RunSummary& summary) {
  using Json = nlohmann::ordered_json;
  const auto known = [](double value, bool is_known) { return is_known ? Json(value) : Json(); };
  Json unit_waits = Json::object();
  for (const auto& [unit, seconds] : summary.unit_waits) unit_waits[unit] = seconds;
  const auto by_name = [&](const std::vector<PredictedBytes>& parts) {
    Json object = Json::object();
    for (const auto& part : parts) {
      object[part.name] = {
          {"predicted", known(static_cast<double>(part.predicted), part.predicted >= 0)},
          {"measured", part.measured}};
    }
    return object;
  };
  Json answers = Json::array();
  for (const auto& [prompt, expected, before, after] : summary.answers) {
    answers.push_back({{"prompt", prompt},
                       {"expected", expected},
                       {"before", before ? Json(*before) : Json()},
                       {"after", after}});
  }
  const auto best = summary.best_validation ? Json{{"step", summary.best_validation->first},
                                                   {"loss", summary.best_validation->second}}
                                            : Json();
  const Json json{
      {"run_dir", summary.run_dir},
      {"world_size", summary.world_size},
      {"parameters", summary.parameters},
      {"steps", summary.steps},
      {"total_seconds", summary.total_seconds},
      {"seconds_to_first_step",
       known(summary.seconds_to_first_step, summary.seconds_to_first_step > 0)},
      {"median_step_seconds", summary.median_step_seconds},
      {"tokens_per_second", summary.tokens_per_second},
      {"mfu", known(summary.mfu, summary.mfu >= 0)},
      {"matmul_peak_flops", known(summary.matmul_peak_flops, summary.matmul_peak_flops > 0)},
      {"matmul_peak_note", summary.matmul_peak_note},
      {"mfu_with_masked", known(summary.mfu * (1 + summary.masked_share), summary.mfu >= 0)},
      {"communication_wait_share", summary.communication_wait_share},
      {"drive_wait_share", summary.drive_wait_share ? Json(*summary.drive_wait_share) : Json()},
      {"unit_waits", unit_waits},
      {"memory", by_name(summary.memory)},
      {"traffic", by_name(summary.traffic)},
      {"skipped_steps", summary.skipped_steps},
      {"first_loss", summary.first_loss},
      {"last_loss", summary.last_loss},
      {"validation_loss", summary.validation_loss ? Json(*summary.validation_loss) : Json()},
      {"validation_loss_on_start",
       summary.validation_loss_on_start ? Json(*summary.validation_loss_on_start) : Json()},
      {"best_validation", best},
      {"ended_early", summary.ended_early.empty() ? Json() : Json(summary.ended_early)},
      {"peak_memory_bytes", summary.peak_memory_bytes},
      {"sample", summary.sample ? Json(*summary.sample) : Json()},
      {"answers", answers},
      {"experts", experts_json(summary.experts)},
      {"fp8", fp8_layers_json(summary.fp8)},
      {"forced_balance", summary.forced_balance}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::report
