#include "tessera/report/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/report/output.h"

namespace tessera::report {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of keys; writes NaN and infinities as null

constexpr const char* kExpertTokens = "moe/tokens";
constexpr const char* kFp8 = "fp8";
constexpr const char* kDriveWait = "drive_wait_seconds";

Json step_json(const StepRecord& record) {
  Json line{{"step", record.step},
            {"loss", record.loss},
            {"grad_norm", record.grad_norm},
            {"learning_rate", record.learning_rate},
            {"step_seconds", record.step_seconds},
            {"tokens_per_second", record.tokens_per_second},
            {"mfu", record.mfu < 0 ? Json() : Json(record.mfu)},
            {"tokens_seen", record.tokens_seen},
            {"memory_bytes", record.memory_bytes},
            {"communication_wait_seconds", record.communication_wait_seconds}};
  if (record.drive_wait_seconds) line[kDriveWait] = *record.drive_wait_seconds;
  return line;
}

Json with_figures(Json line, const std::vector<Figure>& figures) {
  for (const auto& figure : figures) line[figure.tag] = figure.value;
  return line;
}

double number(const Json& json, const char* key, double if_null = NAN) {
  const Json& value = json.at(key);
  return value.is_null() ? if_null : value.get<double>();
}

std::vector<ExpertLoad> experts_of(const Json& json) {
  std::vector<ExpertLoad> loads;
  if (!json.contains(kExpertTokens)) return loads;
  for (const auto& [layer, tokens] : json.at(kExpertTokens).items()) {
    const auto prefix = "moe/layer_" + layer + "/";
    auto& load = loads.emplace_back();
    load.layer = std::stoll(layer), load.tokens = tokens.get<std::vector<int64_t>>();
    load.entropy = json.value(prefix + "entropy", 0.0);
    if (json.contains(prefix + "dropped")) load.dropped = json.value(prefix + "dropped", 0.0);
  }
  return loads;
}

/// Four digits: a line is of every layer.
double shortened(double value) {
  return std::strtod(fmt::format("{:.4g}", value).c_str(), nullptr);
}

Json roundings_json(const std::vector<Fp8Rounding>& layers) {
  auto json = Json::object();
  for (const auto& [layer, path, operands] : layers) {
    auto& own = json[path] = {{"layer", layer}};
    for (size_t i = 0; i < operands.size(); ++i) {
      const auto& [amax, scale, underflow, overflow] = operands[i];
      own[std::string(Fp8Rounding::kOperands[i])] = {shortened(amax), shortened(scale),
                                                     shortened(underflow), shortened(overflow)};
    }
  }
  return json;
}

std::vector<Fp8Rounding> roundings_of(const Json& json) {
  std::vector<Fp8Rounding> layers;
  if (!json.contains(kFp8)) return layers;
  for (const auto& [path, values] : json.at(kFp8).items()) {
    auto& layer = layers.emplace_back();
    layer.layer = values.at("layer").get<int64_t>(), layer.path = path;
    for (size_t i = 0; i < layer.operands.size(); ++i) {
      const auto& own = values.at(std::string(Fp8Rounding::kOperands[i]));
      const auto at = [&own](size_t j) {
        return own.at(j).is_null() ? NAN : own.at(j).get<double>();
      };
      layer.operands[i] = {at(0), at(1), at(2), at(3)};
    }
  }
  return layers;
}

StepRecord step_of(const Json& json) {
  return {.step = json.at("step").get<int64_t>(),
          .loss = number(json, "loss"),
          .grad_norm = number(json, "grad_norm"),
          .learning_rate = number(json, "learning_rate"),
          .step_seconds = number(json, "step_seconds"),
          .tokens_per_second = number(json, "tokens_per_second"),
          .mfu = number(json, "mfu", -1),
          .communication_wait_seconds = number(json, "communication_wait_seconds"),
          .drive_wait_seconds =
              json.contains(kDriveWait) ? std::optional(number(json, kDriveWait)) : std::nullopt,
          .tokens_seen = json.at("tokens_seen").get<int64_t>(),
          .memory_bytes = json.at("memory_bytes").get<int64_t>(),
          .experts = experts_of(json),
          .fp8 = roundings_of(json)};
}

/// Calls use(line, json) for each whole line.
template <typename Use>
void for_each_record(const std::filesystem::path& path, const Use& use) {
  const MappedFile file(path);
  int64_t line_number = 0;
  for_each_line(file.text(), [&](std::string_view line) {
    ++line_number;
    try {
      use(line, Json::parse(line));
    } catch (const nlohmann::json::exception&) {
      user_error("{}:{}: expected one step or validation loss as JSON; move the file away",
                 path.string(), line_number);
    }
  });
}

/// The whole lines up to and including `last_step`.
std::string kept_lines(const std::filesystem::path& path, int64_t last_step) {
  std::string kept;
  for_each_record(path, [&](std::string_view line, const Json& json) {
    if (json.at("step").get<int64_t>() <= last_step) kept += line;
  });
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const SinkOptions& options) : path_(options.run_dir / kMetricsFile) {
  make_folder(options.run_dir);
  const bool append = options.steps_done > 0;
  if (append && std::filesystem::exists(path_)) {
    const std::string kept = kept_lines(path_, options.steps_done);
    if (kept.size() != std::filesystem::file_size(path_)) write_file(path_, kept);
  }
  fd_ = open_to_append(path_);
  if (!append && ::ftruncate(fd_, 0) != 0 && errno != EINVAL)  // a device has nothing to cut
    system_error(path_.string() + ": cannot be written");
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) ::close(fd_);
}

MetricsLog::MetricsLog(MetricsLog&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

MetricsLog& MetricsLog::operator=(MetricsLog&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void MetricsLog::step(const StepRecord& record) {
  auto line = with_figures(step_json(record), record.figures);
  for (const auto& load : record.experts) {
    line[kExpertTokens][std::to_string(load.layer)] = load.tokens;
  }
  if (!record.fp8.empty()) line[kFp8] = roundings_json(record.fp8);
  write_line(line.dump());
  if (record.validation_loss) {
    validation(record.step, *record.validation_loss, record.validation_figures);
  }
}

void MetricsLog::validation(int64_t step, double loss, const std::vector<Figure>& figures) {
  write_line(with_figures({{"step", step}, {"validation_loss", loss}}, figures).dump());
}

void MetricsLog::write_line(std::string line) {
  line += '\n';
  if (!write_all(fd_, line)) system_error(path_.string() + ": cannot be written");
}

MetricsHistory read_metrics(const std::filesystem::path& run_dir) {
  MetricsHistory history;
  for_each_record(run_dir / kMetricsFile, [&](std::string_view, const Json& json) {
    if (json.contains("validation_loss")) {
      history.validation.emplace_back(json.at("step").get<int64_t>(),
                                      number(json, "validation_loss"));
    } else {
      history.steps.push_back(step_of(json));
    }
  });
  return history;
}

}  // namespace tessera::report
