#include "tessera/cli/stored_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/formats/open_source.h"
#include "tessera/hub/resolve.h"

namespace tessera::cli {
namespace {

/// Options with which a user hears of what is downloaded.
hub::ResolveOptions telling(const std::string& name_or_path) {
  constexpr int64_t kStep = 10;  // percent
  hub::ResolveOptions options;
  options.on_progress = [name_or_path, shown = -kStep](const hub::Progress& progress) mutable {
    const int64_t percent = 100 * progress.done_bytes / std::max<int64_t>(1, progress.total_bytes);
    if (percent < shown + kStep) return;
    shown = percent;
    fmt::print(stderr, "fetching {}: {} %, {} of {}\n", name_or_path, percent,
               format_bytes(progress.done_bytes), format_bytes(progress.total_bytes));
  };
  options.on_notice = [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); };
  return options;
}

}  // namespace

std::string model_folder(const std::string& name_or_path, bool weights) {
  if (std::filesystem::exists(name_or_path)) return name_or_path;
  auto options = telling(name_or_path);
  options.weights = weights;
  return hub::resolve(name_or_path, options).string();
}

hub::ResolvedData data_files(const std::string& entry) {
  return hub::resolve_data(entry, [&] { return telling(entry); });
}

std::filesystem::path chosen_checkpoint(const std::filesystem::path& source, int64_t step) {
  const auto steps = checkpoint::checkpoints_in(source);
  if (steps.empty() && step < 0) return source;
  if (steps.empty()) user_error("--step: {} is no run with checkpoints", source.string());
  if (step < 0) return steps.back().path;
  for (const auto& each : steps) {
    if (each.step == step) return each.path;
  }
  user_error("--step: {} has no checkpoint of step {}; the last is of {}", source.string(), step,
             steps.back().step);
}

}  // namespace tessera::cli
