#include "tessera/hub/resolve.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/hub/cache.h"
#include "tessera/hub/http.h"
#include "tessera/hub/model_files.h"
#include "tessera/hub/repository_name.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

/// The snapshot of a revision in the cache. UserError with `why` nothing else can be used, if it is
/// not there or not all of it is.
fs::path cached_snapshot(const RepositoryName& name, const ResolveOptions& options,
                         const std::string& why) {
  const auto& root = options.settings.cache;
  const Cache cache(root, name);
  const auto commit = cache.commit_of(name.revision);
  if (!commit || !fs::is_directory(cache.snapshot(*commit))) {
    user_error("{}: no such folder, not in the cache {}, and {}{}", name.text(), root.string(), why,
               cached_hint(root, name));
  }
  auto folder = cache.snapshot(*commit);
  if (const auto missing = missing_file(folder, options.weights); !missing.empty()) {
    user_error("{}: {} is missing from {}, and {}", name.text(), missing, folder.string(), why);
  }
  return folder;
}

/// UserError: a model without weights that can be read.
std::vector<std::string> model_files(const RepositoryName& name,
                                     const std::vector<std::string>& all, bool weights) {
  auto wanted = wanted_files(all, weights);
  const auto is_weights = [](const std::string& file) { return file.ends_with(".safetensors"); };
  if (weights && std::ranges::none_of(wanted, is_weights)) {
    user_error("{}: expected weights as .safetensors among its {} files, got none", name.text(),
               all.size());
  }
  return wanted;
}

fs::path downloaded_or_cached(const RepositoryName& name, const ResolveOptions& options) {
  try {
    const auto choose = [&](const std::vector<std::string>& all) {
      return model_files(name, all, options.weights);
    };
    return download_snapshot(name, options.settings, choose, options.on_progress);
  } catch (const Unreachable& error) {
    const auto why = fmt::format("the Hub cannot be reached ({})", error.what());
    auto folder = cached_snapshot(name, options, why);
    if (options.on_notice) {
      options.on_notice(fmt::format("{}: {}; using {}", name.text(), why, folder.string()));
    }
    return folder;
  }
}

}  // namespace

fs::path resolve(const std::string& name_or_path, const ResolveOptions& options) {
  if (fs::exists(name_or_path)) return name_or_path;
  const auto name = parse_repository_name(name_or_path);
  if (!name) {
    user_error(
        "'{}': no such folder; expected one, or a name on the Hugging Face Hub: org/model or "
        "org/model@revision",
        name_or_path);
  }
  if (options.settings.offline) {
    return cached_snapshot(*name, options, "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set");
  }
  return downloaded_or_cached(*name, options);
}

}  // namespace tessera::hub
