#include "tessera/config/accelerate/question_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/base/units.h"
#include "tessera/models/shape.h"

namespace tessera::config::accelerate {

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<double> count_from(const std::string& text) {
  double number = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || end - stop > 1) return std::nullopt;
  if (stop != end) {
    const auto unit = std::string("kmbt").find(
        static_cast<char>(std::tolower(static_cast<unsigned char>(*stop))));
    if (unit == std::string::npos) return std::nullopt;
    number *= std::pow(1000, static_cast<double>(unit) + 1);
  }
  if (!(number >= 1 && number <= 1e15)) return std::nullopt;
  return number;
}

std::string Context::answer(const std::string& name) const {
  const auto found = answers.find(name);
  return found == answers.end() ? "" : found->second;
}

std::optional<double> Context::num_parameters() const {
  const auto model = answer("model");
  if (const auto count = count_from(model)) return count;
  const auto presets = models::model_preset_names();
  if (std::find(presets.begin(), presets.end(), model) == presets.end()) return std::nullopt;
  return static_cast<double>(models::num_parameters(models::model_preset(model)));
}

States states(const Context& context, const std::string& strategy, bool mixed) {
  const auto ranks = static_cast<double>(strategy == "hybrid" ? context.processes_per_machine()
                                                              : context.num_processes());
  if (strategy == "zero1") {
    return mixed ? States{6 + 12 / ranks, 6} : States{8 + 8 / ranks, 8};
  }
  if (strategy == "zero2") {
    return mixed ? States{2 + 16 / ranks, 2} : States{4 + 12 / ranks, 4};
  }
  if (strategy == "fsdp" || strategy == "hybrid") return {16 / ranks, 0};
  return mixed ? States{18, 18} : States{16, 16};
}

std::string amount(const Context& context, double bytes_per_parameter) {
  const auto num_parameters = context.num_parameters();
  if (!num_parameters) return fmt::format("{:.3g} bytes per parameter", bytes_per_parameter);
  return format_bytes(std::llround(*num_parameters * bytes_per_parameter));
}

bool is_too_much(const Context& context, double bytes_per_parameter) {
  const auto together = context.num_parameters().value_or(0) * bytes_per_parameter *
                        static_cast<double>(context.processes_per_machine());
  const auto memory = static_cast<double>(context.here.machine.memory_bytes);
  return !context.on_gpu() && memory > 0 && together > memory;
}

std::string per_process(const Context& context, double bytes_per_parameter) {
  auto text = amount(context, bytes_per_parameter);
  if (context.num_processes() > 1) text += " per process";
  if (!is_too_much(context, bytes_per_parameter)) return text;
  const auto processes = context.processes_per_machine();
  if (processes > 1) {
    text += ", " + amount(context, bytes_per_parameter * static_cast<double>(processes));
  }
  return text + ": too much";
}

}  // namespace tessera::config::accelerate
