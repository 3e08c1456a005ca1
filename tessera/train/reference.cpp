#include "tessera/train/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/formats/base_weights.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/models/hf_config.h"
#include "tessera/train/document_scores.h"
#include "tessera/train/preference.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using Values = std::vector<double>;
using Tell = std::function<void(const std::string&)>;

/// A digest of everything that the values depend on.
std::string digest_of(const Run& run) {
  const auto& config = run.config;
  const auto rows = [](const data::Rows& data) { return json{data.digest(), data.size()}; };
  json of{{"train", rows(run.train_loader.data())},
          {"seq_len", config.data.seq_len},
          {"too_long", std::string(text_of(config.data.too_long))},
          {"compute", std::string(text_of(config.precision.compute))},
          {"autocast", config.precision.autocast},
          {"parameters", std::string(text_of(config.precision.parameters))},
          {"model", models::to_hf_config(run.model->shape())}};
  if (run.validation_loader) of["validation"] = rows(run.validation_loader->data());
  if (config.model.init == models::Init::pretrained) {
    of["weights"] = checkpoint::sample_of_weights(config.model.path);
  } else {
    of["weights"] = {config.model.seed, config.model.init_std};
  }
  for (const auto& folder : config.adapter.base) {
    of["below"].push_back(checkpoint::base_adapter(folder).sample);
  }
  if (!config.adapter.path.empty()) {
    of["adapter"] = checkpoint::base_adapter(config.adapter.path).sample;
  }
  return sha256(of.dump());
}

/// Values as ranks send them to each other.
void broadcast_from_first(const mesh::Axis& axis, Values& values) {
  auto tensor = torch::from_blob(values.data(), {std::ssize(values)}, torch::kFloat64);
  axis.broadcast(tensor, 0).wait();
}

Values computed(Run& run, const data::Loader& loader, const std::string& what, const Tell& say) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kBetween(5);
  auto said = Clock::now();
  return document_scores(run, loader, [&](int64_t done, int64_t total) {
    if (Clock::now() - said < kBetween) return;
    said = Clock::now();
    say(fmt::format("reference log-probabilities: {} of {} batches of {} pairs", done, total,
                    what));
  });
}

/// What stands in the run folder with this digest. UserError: see prepare_reference.
std::optional<json> stored(const Run& run, const fs::path& file, const std::string& digest) {
  if (!is_there(file)) return {};
  auto found = json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  const bool is_ours = found.is_object() && found.value("digest", json()) == digest;
  if (is_ours) return found;
  if (run.config.checkpoint.resume == "none") return {};
  user_error(
      "{}: of other data, another model or other settings than the run that is to go on; remove it "
      "to compute them anew from the model as the job names it, or set train.run_dir",
      file.string());
}

/// The file's values on every rank.
std::optional<Values> shared(const Run& run, const json& found, const char* split,
                             const std::optional<data::Loader>& loader) {
  if (!loader) return {};
  Values values(static_cast<size_t>(loader->data().num_documents()));
  checkpoint::run_on_all(run.world, [&] {
    if (run.world.rank() != 0) return "";
    const auto& list = found.value(split, json());
    if (!list.is_array() || list.size() != values.size()) {
      user_error("{}: expected {} numbers at {}; remove it to compute them anew", kReferenceFile,
                 values.size(), split);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = list[i].is_number() ? list[i].get<double>() : NAN;
    }
    return "";
  });
  broadcast_from_first(run.world, values);
  return values;
}

std::shared_ptr<const Values> kept(std::optional<Values> values) {
  return values ? std::make_shared<const Values>(std::move(*values)) : nullptr;
}

}  // namespace

void prepare_reference(Run& run, const Tell& say) {
  if (!has_reference(run.config.preference.loss)) return;
  const auto file = fs::path(run.config.train.run_dir) / kReferenceFile;
  std::string digest;
  std::optional<json> found;
  const bool is_first = run.world.rank() == 0;
  const auto told = checkpoint::run_on_all(run.world, [&]() -> std::string {
    if (!is_first) return "";
    digest = digest_of(run);
    found = stored(run, file, digest);
    return found ? "found" : "";
  })[0];
  const std::optional<data::Loader> train(run.train_loader);
  if (told == "found") {
    const json values = found.value_or(json());
    run.reference = {.train = kept(shared(run, values, "train", train)),
                     .validation = kept(shared(run, values, "validation", run.validation_loader))};
    say(fmt::format("reference log-probabilities: read from {}", file.string()));
    return;
  }
  say("reference log-probabilities: one forward over all pairs, before the first step");
  json written{{"digest", digest}};
  const auto compute = [&](const char* split, const std::optional<data::Loader>& loader) {
    if (!loader) return std::shared_ptr<const Values>();
    auto values = computed(run, *loader, split, say);
    if (is_first) written[split] = values;
    return kept(std::move(values));
  };
  run.reference.train = compute("train", train);
  run.reference.validation = compute("validation", run.validation_loader);
  checkpoint::run_on_all(run.world, [&] {
    if (!is_first) return "";
    make_folder(file.parent_path());
    write_file(file, written.dump());
    return "";
  });
}

}  // namespace tessera::train
