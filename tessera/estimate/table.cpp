#include "tessera/estimate/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/report/box_table.h"

namespace tessera::estimate {

const std::vector<std::string>& load_dtype_names() {
  static const std::vector<std::string> names = {"float32", "float16", "int8", "int4"};
  return names;
}

const std::string& name_of(LoadDtype dtype) {
  return load_dtype_names()[static_cast<size_t>(dtype)];
}

int64_t divisor_of(LoadDtype dtype) { return int64_t{1} << static_cast<int>(dtype); }

LoadDtype parse_load_dtype(const std::string& name) {
  const auto& names = load_dtype_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    user_error("estimate-memory: --dtypes: expected {}, got '{}'{}", fmt::join(names, ", "), name,
               did_you_mean(name, names));
  }
  return static_cast<LoadDtype>(found - names.begin());
}

std::string python_bytes(double bytes, bool whole) {
  const char* const units[] = {"bytes", "KB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; unit < 5 && bytes >= 1024; ++unit) bytes /= 1024;
  if (unit == 0 && whole) return fmt::format("{:.0f} bytes", bytes);
  auto text = fmt::format("{:.2f}", bytes);
  if (text.back() == '0') text.pop_back();  // one decimal is always there
  return text + " " + units[unit];
}

int64_t TrainingPhases::highest() const { return std::max({model, gradients, backward, step}); }

bool trains_in(LoadDtype dtype) {
  return dtype == LoadDtype::float32 || dtype == LoadDtype::float16;
}

TrainingPhases training_phases(int64_t total, LoadDtype dtype) {
  if (dtype == LoadDtype::float32)
    return {.model = total, .gradients = total, .backward = 2 * total, .step = 4 * total};
  return {.model = total, .gradients = total + total / 2, .backward = 2 * total, .step = 2 * total};
}

std::string loading_table(const std::string& model, int64_t total, int64_t largest,
                          const std::vector<LoadDtype>& dtypes) {
  std::vector<std::vector<std::string>> rows;
  for (const auto dtype : dtypes) {
    const auto part = [&](int64_t bytes) {
      return python_bytes(static_cast<double>(bytes) / static_cast<double>(divisor_of(dtype)),
                          divisor_of(dtype) == 1);
    };
    const auto highest = static_cast<double>(training_phases(total, dtype).highest());
    rows.push_back({name_of(dtype), part(largest), part(total),
                    trains_in(dtype) ? python_bytes(highest, true) : "N/A"});
  }
  return report::box_table(fmt::format("Memory Usage for loading `{}`", model),
                           {"dtype", "Largest Layer", "Total Size", "Training using Adam"}, rows);
}

std::string phase_table(const std::string& model, int64_t total,
                        const std::vector<LoadDtype>& dtypes) {
  std::vector<std::vector<std::string>> rows;
  for (const auto dtype : dtypes) {
    if (!trains_in(dtype)) continue;
    const auto phases = training_phases(total, dtype);
    std::vector<std::string> row{name_of(dtype)};
    for (const int64_t bytes :
         {phases.model, phases.gradients, phases.backward, phases.step, phases.highest()}) {
      row.push_back(python_bytes(static_cast<double>(bytes), true));
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  return report::box_table(
      fmt::format("Training `{}` with Adam, batch size 1", model),
      {"dtype", "Model", "Gradients", "Backward pass", "Optimizer step", "Highest"}, rows);
}

}  // namespace tessera::estimate
