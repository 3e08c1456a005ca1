#include "tessera/report/sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/nearest.h"
#include "tessera/report/csv_log.h"
#include "tessera/report/mlflow.h"
#include "tessera/report/tensorboard.h"

namespace tessera::report {
namespace {

template <typename Kind>
std::unique_ptr<Sink> make(const SinkOptions& options) {
  return std::make_unique<Kind>(options);
}

constexpr std::array<std::pair<std::string_view, std::unique_ptr<Sink> (*)(const SinkOptions&)>, 3>
    kSinks{
        {{"tensorboard", make<EventWriter>}, {"csv", make<CsvLog>}, {"mlflow", make<MlflowRun>}}};

}  // namespace

std::vector<std::string> shown_figures(const std::vector<Figure>& figures,
                                       const std::string& before) {
  std::vector<std::string> texts;
  for (const auto& figure : figures) {
    if (figure.shown.empty()) continue;
    texts.push_back(fmt::format("{}{} {:.4g}", before, figure.shown, figure.value));
  }
  return texts;
}

double ExpertLoad::max_violation() const {
  const auto sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (sum == 0) return 0;
  const auto most = static_cast<double>(*std::ranges::max_element(tokens));
  return most * static_cast<double>(tokens.size()) / static_cast<double>(sum) - 1;
}

std::vector<Scalar> scalars_of(const StepRecord& record) {
  std::vector<Scalar> values{
      {"train/loss", record.loss},
      {"train/grad_norm", record.grad_norm},
      {"train/learning_rate", record.learning_rate},
      {"train/tokens_seen", static_cast<double>(record.tokens_seen)},
      {"speed/step_seconds", record.step_seconds},
      {"speed/tokens_per_second", record.tokens_per_second},
      {"speed/communication_wait_seconds", record.communication_wait_seconds},
      {"memory/bytes", static_cast<double>(record.memory_bytes)}};
  if (record.mfu >= 0) values.push_back({"speed/mfu", record.mfu});
  if (record.drive_wait_seconds)
    values.push_back({"speed/drive_wait_seconds", *record.drive_wait_seconds});
  for (const auto& figure : record.figures) values.push_back({figure.tag, figure.value});
  if (record.validation_loss) values.push_back({"validation/loss", *record.validation_loss});
  for (const auto& figure : record.validation_figures) {
    values.push_back({"validation/" + figure.tag, figure.value});
  }
  return values;
}

std::vector<std::string> sink_names() {
  std::vector<std::string> names;
  for (const auto& [name, make_it] : kSinks) names.emplace_back(name);
  return names;
}

std::unique_ptr<Sink> make_sink(std::string_view name, const SinkOptions& options) {
  for (const auto& [known, make_it] : kSinks) {
    if (known == name) return make_it(options);
  }
  const auto names = sink_names();
  user_error("expected figures to go to one of {}, got \"{}\"{}", fmt::join(names, ", "), name,
             did_you_mean(std::string(name), names));
}

}  // namespace tessera::report
