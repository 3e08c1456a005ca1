// How an estimate reads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/units.h"
#include "tessera/estimate/fit.h"
#include "tessera/estimate/table.h"

namespace tessera::estimate {
namespace {

std::string bytes_text(double bytes) { return format_bytes(static_cast<int64_t>(bytes)); }

const std::vector<std::pair<std::string, double Moment::*>>& purposes() {
  static const std::vector<std::pair<std::string, double Moment::*>> list = {
      {"parameters", &Moment::parameters},   {"gathered", &Moment::gathered},
      {"gradients", &Moment::gradients},     {"optimizer", &Moment::optimizer},
      {"activations", &Moment::activations}, {"logits, loss", &Moment::logits}};
  return list;
}

std::string settings_text(const std::vector<Setting>& settings) {
  std::vector<std::string> words;
  for (const auto& [key, value] : settings) words.push_back(key + "=" + value);
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string verdict(const RankEstimate& estimate, const std::string& limit_name) {
  const auto need = bytes_text(estimate.memory.device_bytes());
  const auto limit = bytes_text(estimate.limit);
  if (estimate.fits()) {
    return fmt::format("fits {} ({}): {} are left\n", limit_name, limit,
                       bytes_text(estimate.limit - estimate.memory.device_bytes()));
  }
  auto text = fmt::format("does not fit {} ({}): a rank needs {}\n", limit_name, limit, need);
  if (estimate.remedy) {
    return text + fmt::format("one change makes it fit: {}, then a rank needs {}\n",
                              settings_text(estimate.remedy->settings),
                              bytes_text(estimate.remedy->device_bytes));
  }
  if (estimate.least.settings.empty()) return text + "no change of these settings makes it fit\n";
  return text + fmt::format("no single change makes it fit; {} together need {}, which {}\n",
                            settings_text(estimate.least.settings),
                            bytes_text(estimate.least.device_bytes),
                            estimate.least.device_bytes <= estimate.limit
                                ? "fits"
                                : "is still too much: take more ranks, or larger devices");
}

nlohmann::ordered_json change_json(const Change& change) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [key, value] : change.settings) settings[key] = value;
  return {{"settings", settings}, {"device_bytes", static_cast<int64_t>(change.device_bytes)}};
}

}  // namespace

std::string rank_text(const RankEstimate& estimate, const std::string& limit_name) {
  std::vector<std::string> headers{"phase"};
  for (const auto& [name, member] : purposes()) headers.push_back(name);
  headers.emplace_back("all");
  std::vector<std::vector<std::string>> rows;
  for (const auto& moment : estimate.memory.phases) {
    std::vector<std::string> row{moment.phase};
    for (const auto& [name, member] : purposes()) row.push_back(bytes_text(moment.*member));
    row.push_back(bytes_text(moment.total()));
    rows.push_back(std::move(row));
  }
  const auto& memory = estimate.memory;
  const auto title = estimate.num_ranks == 1
                         ? std::string("The one rank in a step")
                         : fmt::format("One of {} ranks in a step", estimate.num_ranks);
  return box_table(title, headers, rows) +
         fmt::format(
             "peak in the {} phase: {}; beside it buffers of communication {}, and at most "
             "{} of the allocator's\n",
             memory.peak().phase, bytes_text(memory.peak().total()),
             bytes_text(memory.communication), bytes_text(memory.slack)) +
         verdict(estimate, limit_name);
}

nlohmann::ordered_json rank_json(const RankEstimate& estimate) {
  using Json = nlohmann::ordered_json;
  const auto whole = [](double bytes) { return static_cast<int64_t>(bytes); };
  Json phases = Json::array();
  for (const auto& moment : estimate.memory.phases) {
    Json phase{{"phase", moment.phase}};
    for (const auto& [name, member] : purposes())
      phase[name == "logits, loss" ? "logits_and_loss" : name] = whole(moment.*member);
    phase["all"] = whole(moment.total());
    phases.push_back(phase);
  }
  Json json{{"ranks", estimate.num_ranks},
            {"phases", phases},
            {"peak_phase", estimate.memory.peak().phase},
            {"peak_bytes", whole(estimate.memory.peak().total())},
            {"communication_bytes", whole(estimate.memory.communication)},
            {"allocator_slack_bytes", whole(estimate.memory.slack)},
            {"device_bytes", whole(estimate.memory.device_bytes())},
            {"limit_bytes", whole(estimate.limit)},
            {"fits", estimate.fits()}};
  if (estimate.fits()) return json;
  json["one_change"] = estimate.remedy ? change_json(*estimate.remedy) : Json();
  if (!estimate.remedy) json["all_changes"] = change_json(estimate.least);
  return json;
}

}  // namespace tessera::estimate
