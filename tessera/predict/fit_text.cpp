// How an estimate reads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/units.h"
#include "tessera/predict/fit.h"
#include "tessera/report/box_table.h"

namespace tessera::predict {
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
  const auto need = bytes_text(estimate.memory().device_bytes());
  const auto limit = bytes_text(estimate.limit);
  if (estimate.fits()) {
    return fmt::format("fits {} ({}): {} are left\n", limit_name, limit,
                       bytes_text(estimate.limit - estimate.memory().device_bytes()));
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

/// "0-3", or of several stages "0-1 6-7".
std::string layers_text(const plan::RankPart& part) {
  std::vector<std::string> ranges;
  for (const auto& stage : part.stages) {
    const auto [begin, end] = stage.layers;
    if (begin == end) continue;
    ranges.push_back(end == begin + 1 ? fmt::format("{}", begin)
                                      : fmt::format("{}-{}", begin, end - 1));
  }
  return fmt::format("{}", fmt::join(ranges, " "));
}

std::string pipeline_text(const RankEstimate& estimate) {
  const auto& first = estimate.pipeline.front().part;
  if (first.mesh.pp == 1) return "";
  std::vector<std::vector<std::string>> rows;
  for (size_t place = 0; place < estimate.pipeline.size(); ++place) {
    const auto& [part, memory, communication, drives, in_flight] = estimate.pipeline[place];
    rows.push_back({fmt::format("{}", place), layers_text(part),
                    fmt::format("{:.6g}", in_flight.micro_batches), bytes_text(in_flight.bytes),
                    bytes_text(memory.peak().total()), bytes_text(memory.device_bytes())});
  }
  return report::box_table(
             fmt::format("The pipeline: {}, {} micro-batches", estimate.schedule,
                         first.num_micro_batches),
             {"rank", "layers", "in flight", "their activations", "peak", "with buffers"}, rows) +
         fmt::format("idle share of its ranks: {:.1f} %, if all stages take equal times\n",
                     100 * estimate.bubble);
}

struct AxisTraffic {
  const char* name;
  int64_t ranks;
  Traffic traffic;
};

std::vector<AxisTraffic> axes_of(const RankNeeds& rank) {
  const auto& mesh = rank.part.mesh;
  return {{"dp", mesh.data_ranks(), rank.communication.dp()},
          {"ep", mesh.ep, rank.communication.ep()},
          {"tp", mesh.tp, rank.communication.tp()},
          {"pp", mesh.pp, rank.communication.pp()}};
}

std::string communication_text(const RankEstimate& estimate) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, ranks, traffic] : axes_of(estimate.rank())) {
    if (ranks == 1) continue;
    rows.push_back({name, fmt::format("{}", ranks), bytes_text(traffic.all_reduce),
                    bytes_text(traffic.all_gather), bytes_text(traffic.reduce_scatter),
                    bytes_text(traffic.sent)});
  }
  if (rows.empty()) return "";
  return report::box_table(
      "Its communication in a step, bytes of whole tensors",
      {"axis", "ranks", "all-reduced", "all-gathered", "reduce-scattered", "sent"}, rows);
}

std::string drives_text(const RankEstimate& estimate) {
  std::string text;
  for (const auto& line : drive_lines(estimate.rank().drives)) text += line + "\n";
  return text;
}

nlohmann::ordered_json drives_json(const DriveTraffic& traffic) {
  const auto whole = [](double bytes) { return static_cast<int64_t>(bytes); };
  return {{"stored_bytes", whole(traffic.stored + traffic.activations)},
          {"read_bytes", whole(traffic.read())},
          {"written_bytes", whole(traffic.written_in_all())}};
}

nlohmann::ordered_json communication_json(const RankNeeds& rank) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto whole = [](double bytes) { return static_cast<int64_t>(bytes); };
  for (const auto& [name, ranks, traffic] : axes_of(rank)) {
    json[name] = {{"ranks", ranks},
                  {"all_reduce", whole(traffic.all_reduce)},
                  {"all_gather", whole(traffic.all_gather)},
                  {"reduce_scatter", whole(traffic.reduce_scatter)},
                  {"sent", whole(traffic.sent)}};
  }
  return json;
}

nlohmann::ordered_json pipeline_json(const RankEstimate& estimate) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array();
  for (const auto& needs : estimate.pipeline) {
    Json layers = Json::array();
    for (const auto& stage : needs.part.stages)
      layers.push_back({stage.layers.begin, stage.layers.end});
    ranks.push_back({{"stages", layers},
                     {"in_flight", needs.in_flight.micro_batches},
                     {"activation_bytes", static_cast<int64_t>(needs.in_flight.bytes)},
                     {"peak_bytes", static_cast<int64_t>(needs.memory.peak().total())},
                     {"device_bytes", static_cast<int64_t>(needs.memory.device_bytes())},
                     {"communication", communication_json(needs)}});
  }
  return {{"schedule", estimate.schedule},
          {"micro_batches", estimate.pipeline.front().part.num_micro_batches},
          {"bubble", estimate.bubble},
          {"ranks", ranks}};
}

nlohmann::ordered_json change_json(const Change& change) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [key, value] : change.settings) settings[key] = value;
  return {{"settings", settings}, {"device_bytes", static_cast<int64_t>(change.device_bytes)}};
}

/// What an adapter trains; "" if all is trained.
std::string trained_text(const RankEstimate& estimate) {
  if (estimate.trained == estimate.parameters) return "";
  return models::trained_text(estimate.trained, estimate.parameters) + "\n";
}

}  // namespace

std::string rank_text(const RankEstimate& estimate, const std::string& limit_name) {
  std::vector<std::string> headers{"phase"};
  for (const auto& [name, member] : purposes()) headers.push_back(name);
  headers.emplace_back("all");
  std::vector<std::vector<std::string>> rows;
  for (const auto& moment : estimate.memory().phases) {
    std::vector<std::string> row{moment.phase};
    for (const auto& [name, member] : purposes()) row.push_back(bytes_text(moment.*member));
    row.push_back(bytes_text(moment.total()));
    rows.push_back(std::move(row));
  }
  const auto& memory = estimate.memory();
  const auto title = estimate.num_ranks == 1 ? std::string("The one rank in a step")
                     : estimate.pipeline.size() == 1
                         ? fmt::format("One of {} ranks in a step", estimate.num_ranks)
                         : fmt::format("Of {} ranks one with place {} in the pipeline, in a step",
                                       estimate.num_ranks, estimate.largest);
  return trained_text(estimate) + pipeline_text(estimate) +
         report::box_table(title, headers, rows) +
         fmt::format(
             "peak in the {} phase: {}; beside it buffers of communication {}, and at most "
             "{} of the allocator's\n",
             memory.peak().phase, bytes_text(memory.peak().total()),
             bytes_text(memory.communication), bytes_text(memory.slack)) +
         communication_text(estimate) + drives_text(estimate) + verdict(estimate, limit_name);
}

nlohmann::ordered_json rank_json(const RankEstimate& estimate) {
  using Json = nlohmann::ordered_json;
  const auto whole = [](double bytes) { return static_cast<int64_t>(bytes); };
  Json phases = Json::array();
  for (const auto& moment : estimate.memory().phases) {
    Json phase{{"phase", moment.phase}};
    for (const auto& [name, member] : purposes())
      phase[name == "logits, loss" ? "logits_and_loss" : name] = whole(moment.*member);
    phase["all"] = whole(moment.total());
    phases.push_back(phase);
  }
  Json json{{"ranks", estimate.num_ranks},
            {"trained_parameters", estimate.trained},
            {"parameters", estimate.parameters},
            {"phases", phases},
            {"peak_phase", estimate.memory().peak().phase},
            {"peak_bytes", whole(estimate.memory().peak().total())},
            {"activation_bytes", whole(estimate.rank().in_flight.bytes)},
            {"communication_bytes", whole(estimate.memory().communication)},
            {"allocator_slack_bytes", whole(estimate.memory().slack)},
            {"device_bytes", whole(estimate.memory().device_bytes())},
            {"limit_bytes", whole(estimate.limit)},
            {"fits", estimate.fits()}};
  json["communication"] = communication_json(estimate.rank());
  if (estimate.rank().drives.stored > 0) json["drives"] = drives_json(estimate.rank().drives);
  if (estimate.pipeline.size() > 1) json["pipeline"] = pipeline_json(estimate);
  if (estimate.fits()) return json;
  json["one_change"] = estimate.remedy ? change_json(*estimate.remedy) : Json();
  if (!estimate.remedy) json["all_changes"] = change_json(estimate.least);
  return json;
}

}  // namespace tessera::predict
