// One file of the Hub into the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/hub/cache.h"
#include "tessera/hub/remote.h"

namespace tessera::hub {

/// Bytes of a file that have arrived. May throw to stop.
using OnBytes = std::function<void(int64_t)>;

/// The blob of `file`, unless it is there: what an earlier attempt left is continued, the size and
/// the hash by which the Hub names it (SHA-256 or Git's) are checked, and only then does the blob
/// get its name. Others who want the same wait. Throws as Remote does; UserError: other content than
/// announced, more than 64 MiB of a file without a size, or neither size nor hash; SystemError: disk
/// full.
void download_blob(Remote& remote, const Cache& cache, const std::string& commit,
                   const RemoteFile& file, const Settings& settings, const OnBytes& on_bytes);

/// What of a blob is still to come, in bytes (0 if the size is not known).
int64_t missing_bytes(const Cache& cache, const RemoteFile& file);

}  // namespace tessera::hub
