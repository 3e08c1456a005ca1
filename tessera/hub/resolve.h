// Where a model is: a folder as it is, or a name on the Hugging Face Hub through the local cache.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tessera/hub/settings.h"
#include "tessera/hub/snapshot.h"

namespace tessera::hub {

struct ResolveOptions {
  Settings settings = settings_from_environment();
  bool weights = true;     ///< false: configuration and tokenizer alone
  OnProgress on_progress;  ///< called often, from several threads, one at a time
  std::function<void(const std::string&)> on_notice;  ///< a line: an older copy is used
};

/// The folder of a model. What exists as a path is returned as it is. "org/model" and
/// "org/model@revision" (branch, tag, commit) are looked up at the Hub, and what the cache lacks is
/// downloaded; offline, or if the Hub does not answer, the cached copy of that revision serves.
/// Several processes may ask for the same at once: one downloads, the others wait.
/// UserError: neither a path nor such a name; no such model or revision (with the nearest cached
/// name); a token is missing; not in the cache and offline or unreachable; too little space.
/// SystemError: disk. Cost: one request if all is there.
std::filesystem::path resolve(const std::string& name_or_path, const ResolveOptions& options = {});

}  // namespace tessera::hub
